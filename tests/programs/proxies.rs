//! Real proxies in front of the examples: a spoofed header cannot buy a second budget.
//!
//! `make proxies` installs nginx and HAProxy, and runs these tests.

#![cfg(all(feature = "axum", feature = "redis"))]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use axum::{Router, routing};
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tollgate::key::Global;
use tollgate::{Quota, RateLimitLayer, RateLimiter};

use crate::support::{example, free_port};

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder for a proxy's files.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-proxy-{}", free_port()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A proxy in front of an example, with a port for each version of HTTP.
struct Proxy {
    http1: u16,
    http2: u16,
    _process: Process,
    _folder: Folder,
}

/// nginx, with the directives of a `location`. Its cache is named `kept`.
async fn nginx(app: u16, location: &str) -> Proxy {
    let (http1, http2, folder) = (free_port(), free_port(), Folder::new());
    let path = folder.0.display();
    let conf = folder.file(
        "nginx.conf",
        &format!(
            "daemon off; master_process off; pid {path}/pid; error_log {path}/error.log; events {{}}
             http {{
               access_log off; client_body_temp_path {path}; proxy_temp_path {path};
               fastcgi_temp_path {path}; uwsgi_temp_path {path}; scgi_temp_path {path};
               underscores_in_headers on;
               proxy_cache_path {path}/cache keys_zone=kept:1m;
               server {{
                 listen 127.0.0.1:{http1}; listen 127.0.0.1:{http2} http2;
                 location / {{
                   proxy_pass http://127.0.0.1:{app}; proxy_http_version 1.1; {location}
                 }}
               }}
             }}"
        ),
    );
    let log = folder.0.join("error.log");
    let process = start(
        "nginx",
        &["-e", log.to_str().unwrap(), "-c", conf.to_str().unwrap()],
    );
    ready(Proxy {
        http1,
        http2,
        _process: process,
        _folder: folder,
    })
    .await
}

/// HAProxy, with options of its backend and of its server.
async fn haproxy(app: u16, backend: &str, server: &str) -> Proxy {
    let (http1, http2, folder) = (free_port(), free_port(), Folder::new());
    let conf = folder.file(
        "haproxy.cfg",
        &format!(
            "global\n noreuseport\n\
             defaults\n mode http\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n\
             frontend in\n bind 127.0.0.1:{http1}\n bind 127.0.0.1:{http2} proto h2\n \
             default_backend app\n\
             backend app\n {backend}\n server app 127.0.0.1:{app} {server}\n"
        ),
    );
    let process = start("haproxy", &["-db", "-q", "-f", conf.to_str().unwrap()]);
    ready(Proxy {
        http1,
        http2,
        _process: process,
        _folder: folder,
    })
    .await
}

fn start(program: &str, arguments: &[&str]) -> Process {
    let in_sbin = Path::new("/usr/sbin").join(program);
    let program = if in_sbin.exists() {
        in_sbin
    } else {
        program.into()
    };
    let child = Command::new(&program).args(arguments).spawn();
    let child =
        child.unwrap_or_else(|error| panic!("{}: {error}: run `make proxies`", program.display()));
    Process(child)
}

/// Waits until both ports accept connections.
async fn ready(proxy: Proxy) -> Proxy {
    let start = Instant::now();
    for port in [proxy.http1, proxy.http2] {
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .await
            .is_err()
        {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "the proxy does not listen"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    proxy
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// A connection from an address of the loopback network, which the proxy sees.
async fn connect(proxy: &Proxy, version: Version, client: [u8; 4]) -> TokioIo<TcpStream> {
    let port = if version == Version::Http1 {
        proxy.http1
    } else {
        proxy.http2
    };
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((client, 0))).unwrap();
    TokioIo::new(
        socket
            .connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
            .await
            .unwrap(),
    )
}

/// One request of a client, with headers: the status and the text of the response.
async fn get(
    proxy: &Proxy,
    version: Version,
    client: [u8; 4],
    headers: &[(&str, &str)],
) -> (u16, String) {
    let io = connect(proxy, version, client).await;
    let uri = if version == Version::Http1 {
        "/"
    } else {
        "http://localhost/"
    };
    let mut request = Request::builder().uri(uri);
    if version == Version::Http1 {
        request = request.header("host", "localhost");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let response = match version {
        Version::Http1 => {
            let (mut sender, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        }
        Version::Http2 => {
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        }
    };
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).trim().to_owned())
}

/// The names and values of a response, of a client with HTTP/1.1.
async fn headers(proxy: &Proxy, client: [u8; 4]) -> HeaderMap {
    let io = connect(proxy, Version::Http1, client).await;
    let (mut sender, connection) = http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/").header("host", "localhost");
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    sender
        .send_request(request)
        .await
        .unwrap()
        .headers()
        .clone()
}

/// A client sends another spoofed address with each of its requests, in every header that is known.
/// It has one budget of five requests, and another client has a budget of its own.
async fn spoofing_buys_no_budget(proxy: &Proxy) {
    for (version, attacker, other) in [
        (Version::Http1, [127, 0, 0, 2], [127, 0, 0, 3]),
        (Version::Http2, [127, 0, 0, 4], [127, 0, 0, 5]),
    ] {
        let mut answers = Vec::new();
        for number in 1..=8 {
            let address = format!("203.0.113.{number}");
            let trusted = format!("{address}, 127.0.0.1, 127.0.0.1");
            let forwarded = format!("for={address};host=\"a, b\", for=127.0.0.1");
            let headers = [
                ("x-forwarded-for", &*address),
                ("x-forwarded-for", &trusted),
                ("forwarded", &forwarded),
                ("x-real-ip", &address),
                ("x_forwarded_for", &address),
                ("cf-connecting-ip", &address),
                ("true-client-ip", &address),
                ("fly-client-ip", &address),
                ("x-client-ip", &address),
                ("cloudfront-viewer-address", &trusted),
            ];
            answers.push(get(proxy, version, attacker, &headers).await);
        }
        let [a, b, c, d] = attacker;
        let address = format!("{a}.{b}.{c}.{d}");
        for answer in &answers[..5] {
            assert_eq!(*answer, (200, address.clone()), "{version:?}");
        }
        assert!(
            answers[5..].iter().all(|(status, _)| *status == 429),
            "{version:?} {answers:?}"
        );
        let [a, b, c, d] = other;
        let answer = get(proxy, version, other, &[]).await;
        assert_eq!(answer, (200, format!("{a}.{b}.{c}.{d}")), "{version:?}");
    }
}

const BEHIND_LOOPBACK: (&str, &str) = ("TRUSTED", "127.0.0.1");

#[tokio::test]
#[ignore = "needs nginx: make proxies"]
async fn nginx_appends_to_x_forwarded_for() {
    let app = example::start("behind_proxy", &[BEHIND_LOOPBACK]);
    let proxy = nginx(
        app.port,
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    )
    .await;
    spoofing_buys_no_budget(&proxy).await;
}

#[tokio::test]
#[ignore = "needs nginx: make proxies"]
async fn nginx_keeps_no_budget_of_a_client_for_others() {
    for (cache_control, is_reported) in [("public, max-age=60", false), ("no-store", true)] {
        let quota = Quota::per_hour(1_000);
        let layer = RateLimitLayer::fixed_window(RateLimiter::in_memory(), "api", quota, Global);
        let answer = move || async move { ([("cache-control", cache_control)], "hello") };
        let app = Router::new()
            .route("/", routing::get(answer))
            .layer(layer.unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let location = "proxy_cache kept; add_header x-cache $upstream_cache_status;";
        let proxy = nginx(port, location).await;
        for (client, cached) in [([127, 0, 0, 2], "MISS"), ([127, 0, 0, 3], "HIT")] {
            let headers = headers(&proxy, client).await;
            let cached = if is_reported { "MISS" } else { cached };
            assert_eq!(headers["x-cache"], cached, "{cache_control}");
            let found = headers.contains_key("x-ratelimit-remaining");
            assert_eq!(found, is_reported, "{cache_control}: {headers:?}");
        }
        server.abort();
    }
}

#[tokio::test]
#[ignore = "needs nginx: make proxies"]
async fn nginx_sets_x_real_ip() {
    let settings = [BEHIND_LOOPBACK, ("HEADER", "X-Real-IP")];
    let location = "proxy_set_header X-Real-IP $remote_addr;";
    let app = example::start("behind_proxy", &settings);
    let proxy = nginx(app.port, location).await;
    spoofing_buys_no_budget(&proxy).await;
}

#[tokio::test]
#[ignore = "needs nginx: make proxies"]
async fn nginx_appends_to_forwarded() {
    let settings = [BEHIND_LOOPBACK, ("FORWARDED", "1")];
    let location = "proxy_set_header Forwarded \"$http_forwarded, for=$remote_addr\";";
    let app = example::start("behind_proxy", &settings);
    let proxy = nginx(app.port, location).await;
    spoofing_buys_no_budget(&proxy).await;
    // A client that leaves a quote open is rejected, and buys no budget.
    for open in ["for=\"", "for=192.0.2.1;by=\"a", "for=\"\\"] {
        let (status, text) = get(
            &proxy,
            Version::Http1,
            [127, 0, 0, 6],
            &[("forwarded", open)],
        )
        .await;
        assert_eq!(status, 400, "{text}");
    }
}

#[tokio::test]
#[ignore = "needs nginx: make proxies"]
async fn client_cannot_make_nginx_drop_the_header() {
    let app = example::start("behind_proxy", &[BEHIND_LOOPBACK]);
    let proxy = nginx(
        app.port,
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    )
    .await;
    let headers = [
        ("connection", "close, x-forwarded-for"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    let answer = get(&proxy, Version::Http1, [127, 0, 0, 7], &headers).await;
    assert_eq!(answer, (200, "127.0.0.7".to_owned()));
}

#[tokio::test]
#[ignore = "needs HAProxy: make proxies"]
async fn haproxy_adds_a_line_of_x_forwarded_for() {
    for server in ["", "proto h2"] {
        let app = example::start("behind_proxy", &[BEHIND_LOOPBACK]);
        let proxy = haproxy(app.port, "option forwardfor", server).await;
        spoofing_buys_no_budget(&proxy).await;
    }
}

#[tokio::test]
#[ignore = "needs HAProxy: make proxies"]
async fn haproxy_rule_adds_a_line_of_forwarded() {
    let settings = [BEHIND_LOOPBACK, ("FORWARDED", "1")];
    let backend = "http-request add-header Forwarded \"for=%[src];proto=http\"";
    let app = example::start("behind_proxy", &settings);
    let proxy = haproxy(app.port, backend, "").await;
    spoofing_buys_no_budget(&proxy).await;
}

#[tokio::test]
#[ignore = "needs HAProxy: make proxies"]
async fn haproxy_sends_the_proxy_protocol() {
    for server in ["send-proxy", "send-proxy-v2", "send-proxy-v2 proto h2"] {
        let app = example::start("proxy_protocol", &[BEHIND_LOOPBACK]);
        let proxy = haproxy(app.port, "", server).await;
        spoofing_buys_no_budget(&proxy).await;
    }
}

#[tokio::test]
#[ignore = "needs nginx and HAProxy: make proxies"]
async fn client_is_found_behind_two_proxies() {
    let app = example::start("behind_proxy", &[BEHIND_LOOPBACK]);
    let inner = nginx(
        app.port,
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    )
    .await;
    let outer = haproxy(inner.http1, "option forwardfor", "").await;
    spoofing_buys_no_budget(&outer).await;
}
