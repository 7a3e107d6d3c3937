//! A request through the layer on the embedded store, by the peer's address and by the client's.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Waker};

use axum::body::Body;
use criterion::{Criterion, criterion_group, criterion_main};
use http::{HeaderValue, Request, Response};
use tollgate::key::{ClientIp, KeyExtractor, Networks, PeerIp};
use tollgate::{Quota, RateLimitLayer, RateLimiter};
use tower::{Layer, Service, service_fn};

/// A limit above the throughput of the benchmark.
const PLENTY: Quota = Quota::per_second(1_000_000_000);

/// The number of client addresses: one octet of each varies.
const CLIENTS: usize = 256;

/// A header, and its value for the n-th client.
type ClientHeader = (&'static str, fn(usize) -> String);

fn handler(_: Request<Body>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new(Body::empty())))
}

fn measure(
    criterion: &mut Criterion,
    name: &str,
    key: impl KeyExtractor,
    peer: &str,
    header: Option<ClientHeader>,
) {
    let layer = RateLimitLayer::token_bucket(RateLimiter::in_memory(), "api", PLENTY, key)
        .expect("the limit is valid");
    let mut service = layer.layer(service_fn(handler));
    let peer: SocketAddr = peer.parse().expect("an address");
    let values: Vec<HeaderValue> = match header {
        Some((_, value)) => (0..CLIENTS)
            .map(|client| value(client).parse().expect("a header value"))
            .collect(),
        None => Vec::new(),
    };
    let peers: Vec<SocketAddr> = match header {
        Some(_) => vec![peer],
        None => (0..CLIENTS)
            .map(|it| SocketAddr::from(([192, 0, 2, it as u8], 80)))
            .collect(),
    };
    let mut client = 0;
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| {
            let mut request = Request::new(Body::empty());
            client = (client + 1) % CLIENTS;
            request.extensions_mut().insert(peers[client % peers.len()]);
            if let Some((name, _)) = header {
                request.headers_mut().insert(name, values[client].clone());
            }
            let response = pin!(service.call(request));
            black_box(
                response
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_ready(),
            )
        });
    });
}

fn client_ip(criterion: &mut Criterion) {
    let (direct, proxy) = ("192.0.2.1:80", "10.0.0.1:80");
    let list: ClientHeader = ("x-forwarded-for", |client| {
        format!("203.0.113.{}, 10.0.0.9", client % 256)
    });
    let elements: ClientHeader = ("forwarded", |client| {
        format!("for=203.0.113.{};proto=https, for=10.0.0.9", client % 256)
    });
    let v6: ClientHeader = ("x-forwarded-for", |client| {
        format!("2001:db8:0:{client:x}::1, 10.0.0.9")
    });
    let one: ClientHeader = ("x-real-ip", |client| format!("203.0.113.{}", client % 256));
    let behind = || ClientIp::behind(["10.0.0.0/8"]).expect("a network");
    let vendor = {
        let networks =
            (0..300).map(|number| format!("198.{}.{}.0/25", 18 + number / 256, number % 256));
        let networks = Networks::new(networks.chain(["10.0.0.0/8".to_owned()])).expect("networks");
        ClientIp::behind(networks).expect("networks")
    };
    measure(criterion, "PeerIp", PeerIp, direct, None);
    measure(
        criterion,
        "ClientIp, direct",
        ClientIp::direct(),
        direct,
        None,
    );
    measure(
        criterion,
        "ClientIp, X-Forwarded-For",
        behind(),
        proxy,
        Some(list),
    );
    measure(
        criterion,
        "ClientIp, X-Forwarded-For, IPv6",
        behind(),
        proxy,
        Some(v6),
    );
    measure(
        criterion,
        "ClientIp, X-Forwarded-For, 301 networks",
        vendor,
        proxy,
        Some(list),
    );
    measure(
        criterion,
        "ClientIp, Forwarded",
        behind().forwarded(),
        proxy,
        Some(elements),
    );
    let single = behind().header("x-real-ip").expect("a name");
    measure(criterion, "ClientIp, X-Real-IP", single, proxy, Some(one));
}

criterion_group!(benches, client_ip);
criterion_main!(benches);
