//! `a.or(b)`: keys of the first branch are unchanged, and keys of the fallback are marked.

#![cfg(feature = "axum")]

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use http::request::Parts;
use http::{Request, Response};
use tollgate::key::{Extension, Global, Header, KeyExtractor, PeerIp};
use tollgate::{Check, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::log::Log;

#[derive(Clone, Copy)]
struct UserId(u64);

/// A request with a user or without, from a peer or without, with `x-a`, `x-b` and so on.
fn request(user: Option<u64>, peer: Option<IpAddr>, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    user.map(|user| request.extensions_mut().insert(UserId(user)));
    peer.map(|peer| request.extensions_mut().insert(SocketAddr::new(peer, 4711)));
    for &(name, value) in headers {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

fn key_of(extractor: &dyn KeyExtractor, headers: &[(&str, &str)]) -> Key {
    extractor
        .extract(&request(None, None, headers).into_parts().0)
        .unwrap()
}

fn header(name: &str) -> Header {
    Header::new(name).unwrap()
}

#[tokio::test]
async fn reset_reaches_budgets_of_plain_and_fallback_keys() {
    let limiter = RateLimiter::new(MemoryStore::new());
    let limit = Limit::fixed_window("api", Quota::per_hour(1)).unwrap();
    let user = Extension::new(|user: &UserId| Key::from(user.0));
    let layer = RateLimitLayer::new(&limiter, limit.clone(), user.or(PeerIp)).unwrap();
    let peer: IpAddr = "2001:db8::7".parse().unwrap();

    for (request, key) in [
        (request(Some(42), Some(peer), &[]), Key::from(42)),
        (
            request(None, Some(peer), &[]),
            PeerIp::key_of(peer).fallback(),
        ),
    ] {
        let parts = request.into_parts().0;
        let status = || async {
            let inner = service_fn(|_: Request<Body>| async {
                Ok::<_, Infallible>(Response::new(Body::empty()))
            });
            let request = Request::from_parts(parts.clone(), Body::empty());
            layer
                .layer(inner)
                .oneshot(request)
                .await
                .unwrap()
                .status()
                .as_u16()
        };
        assert_eq!([status().await, status().await], [200, 429]);
        limiter.reset(&limit, &key).await.unwrap();
        assert_eq!([status().await, status().await], [200, 429], "{key}");
    }
}

#[test]
fn keys_of_the_first_branch_are_unmarked() {
    let either = header("x-a").or(header("x-b"));
    assert_eq!(
        key_of(&either, &[("x-a", "1"), ("x-b", "2")]),
        Key::new("1")
    );
    assert_eq!(key_of(&either, &[("x-b", "2")]), Key::new("2").fallback());
}

#[test]
fn keys_that_imitate_the_fallback_mark_are_distinct() {
    let either = header("x-a").or(header("x-b"));
    let fallback = key_of(&either, &[("x-b", "7")]);
    for number in ["1", "2", "|", "|7", "%7c7", fallback.as_str()] {
        let both = Key::new(number).join(&Key::new("7"));
        assert_ne!(key_of(&either, &[("x-a", number)]), fallback);
        assert_ne!(both, fallback);
        assert_ne!(Key::from_parts([number, "7"]), fallback);
    }
    assert_ne!(key_of(&header("x-a").or(Global), &[]), Key::global());
}

/// Extractors of the same four headers in the same order, in every nesting.
fn chains() -> Vec<Arc<dyn KeyExtractor>> {
    let [a, b, c, d] = ["x-a", "x-b", "x-c", "x-d"];
    let [a, b, c, d] = [a, b, c, d].map(|name| move || header(name));
    vec![
        Arc::new(a().or(b()).or(c()).or(d())),
        Arc::new(a().or(b().or(c().or(d())))),
        Arc::new(a().or(b()).or(c().or(d()))),
        Arc::new(a().or(b().or(c())).or(d())),
        Arc::new(a().or(b().or(c()).or(d()))),
        // A pointer keeps the order of its branches.
        Arc::new(
            (Arc::new(a().or(b())) as Arc<dyn KeyExtractor>)
                .or(c())
                .or(d()),
        ),
        Arc::new((Box::new(a().or(b().or(c()))) as Box<dyn KeyExtractor>).or(d())),
    ]
}

#[test]
fn branches_of_a_chain_have_distinct_keys_in_any_nesting() {
    for chain in chains() {
        let mut expected = Key::new("7");
        for name in ["x-a", "x-b", "x-c", "x-d"] {
            assert_eq!(key_of(&chain, &[(name, "7")]), expected, "{name}");
            expected = expected.fallback();
        }
    }
}

#[test]
fn fallback_key_is_independent_of_the_missing_part() {
    let chain = header("x-a")
        .or(header("x-b"))
        .and(header("x-c"))
        .or(header("x-d"));
    let expected = Key::new("7").fallback();
    for others in [&[][..], &[("x-a", "1")], &[("x-b", "1")], &[("x-c", "1")]] {
        assert_eq!(
            key_of(&chain, &[others, &[("x-d", "7")]].concat()),
            expected
        );
    }
}

/// Sends requests, and returns the events about extractors.
async fn events_of(layer: &RateLimitLayer, requests: Vec<Request<Body>>) -> Vec<String> {
    let (log, _guard) = Log::start();
    for request in requests {
        let inner = service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        layer.layer(inner).oneshot(request).await.unwrap();
    }
    log.lines()
        .into_iter()
        .filter(|line| line.contains("key extractor"))
        .collect()
}

fn by_user_or_peer() -> RateLimitLayer {
    let user = Extension::new(|user: &UserId| Key::from(user.0));
    let limit = Limit::gcra("api", Quota::per_second(1_000_000)).unwrap();
    RateLimitLayer::new(RateLimiter::in_memory(), limit, user.or(PeerIp)).unwrap()
}

fn peer() -> IpAddr {
    "192.0.2.7".parse().unwrap()
}

#[tokio::test]
async fn chain_that_always_falls_back_is_reported_once_with_the_reason() {
    let layer = by_user_or_peer();
    let of_peer = || request(None, Some(peer()), &[]);
    let few = (0..999).map(|_| of_peer()).collect();
    assert_eq!(events_of(&layer, few).await, [""; 0]);
    let reported = events_of(&layer, (0..2_000).map(|_| of_peer()).collect()).await;
    let [event] = &*reported else {
        panic!("{reported:?}")
    };
    assert!(event.contains("found no key in any request"), "{event}");
    assert!(
        event.contains("limit=\"api\"") && event.contains("requests=1000"),
        "{event}"
    );
    assert!(event.contains("::UserId` extension"), "{event}");
    assert!(event.contains("is inside this one"), "{event}");
}

#[tokio::test]
async fn value_within_axums_extension_is_named_as_the_reason() {
    let wrapped = (0..1_000).map(|_| {
        let mut request = request(None, Some(peer()), &[]);
        request.extensions_mut().insert(axum::Extension(UserId(42)));
        request
    });
    let reported = events_of(&by_user_or_peer(), wrapped.collect()).await;
    assert_eq!(reported.len(), 1);
    assert!(
        reported[0].contains("Insert the value itself"),
        "{}",
        reported[0]
    );
}

#[tokio::test]
async fn closure_that_asks_for_axums_extension_is_named_as_the_reason() {
    let bare = (0..1_000).map(|_| request(Some(42), Some(peer()), &[]));
    let wrapped = Extension::new(|user: &axum::Extension<UserId>| Key::from(user.0.0));
    let limit = Limit::gcra("api", Quota::per_second(1_000_000)).unwrap();
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), limit, wrapped.or(PeerIp));
    let reported = events_of(&layer.unwrap(), bare.collect()).await;
    assert_eq!(reported.len(), 1);
    assert!(
        reported[0].contains("layers insert the value itself"),
        "{}",
        reported[0]
    );
}

#[tokio::test]
async fn chain_whose_first_extractor_finds_a_key_now_and_then_is_not_reported() {
    let requests = (0..3_000).map(|number| {
        let user = (number == 500).then_some(42);
        request(user, Some(peer()), &[])
    });
    assert_eq!(
        events_of(&by_user_or_peer(), requests.collect()).await,
        [""; 0]
    );
}

#[tokio::test]
async fn chain_within_a_join_or_of_chosen_limits_is_reported() {
    let user = || Extension::new(|user: &UserId| Key::from(user.0));
    let limiter = RateLimiter::in_memory();
    let limit = |name| Limit::gcra(name, Quota::per_second(1_000_000)).unwrap();
    let chosen = limit("chosen");
    let choose = move |_: &Parts, key: &Key| Check::new(&chosen, key).into();
    for layer in [
        RateLimitLayer::new(&limiter, limit("left"), user().or(PeerIp).and(Global)),
        RateLimitLayer::new(&limiter, limit("right"), Global.and(user().or(PeerIp))),
        RateLimitLayer::from_key(&limiter, user().or(PeerIp), choose),
    ] {
        let requests = (0..1_000)
            .map(|_| request(None, Some(peer()), &[]))
            .collect();
        let reported = events_of(&layer.unwrap(), requests).await;
        let [event] = &*reported else {
            panic!("{reported:?}")
        };
        assert!(event.contains("::UserId` extension"), "{event}");
    }
}
