//! The layer and its inner service: readiness, clones, cancellation and large responses.

#![cfg(feature = "http")]

use std::convert::Infallible;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::support::scripted::{Scripted, time_out_after};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::key::{Global, Header, KeyExtractor};
use tollgate::layer::OnStoreFailure;
use tollgate::store::Store;
use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};

const MS: Duration = Duration::from_millis(1);

type Body = Full<Bytes>;

fn layer(store: impl Store) -> RateLimitLayer {
    let quota = Quota::per_second(100_000);
    RateLimitLayer::gcra(RateLimiter::new(store), "api", quota, Global).unwrap()
}

async fn hello(_: Request<Body>) -> Result<Response<Body>, BoxError> {
    Ok(Response::new(Full::default()))
}

/// Sends 50 requests at once. Returns the number of shed requests, and the time until the last
/// response.
async fn fifty<S>(service: S) -> (usize, Duration)
where
    S: Service<Request<Body>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
{
    let started = Instant::now();
    let mut requests = JoinSet::new();
    for _ in 0..50 {
        let service = service.clone();
        requests.spawn(async move {
            service
                .oneshot(Request::new(Full::default()))
                .await
                .is_err()
        });
    }
    let shed = requests
        .join_all()
        .await
        .into_iter()
        .filter(|&shed| shed)
        .count();
    (shed, started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn pending_check_holds_no_permit_of_the_inner_service() {
    for store in [
        Scripted::new(|_, _| time_out_after(250 * MS)),
        Scripted::answering(250 * MS),
    ] {
        let service = ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(
                layer(store)
                    .on_store_failure(OnStoreFailure::FailOpen)
                    .unwrap(),
            )
            .layer(ConcurrencyLimitLayer::new(3))
            .service(service_fn(hello));
        assert_eq!(fifty(service).await, (0, 250 * MS));
    }
}

#[tokio::test(start_paused = true)]
async fn allowed_requests_wait_for_the_inner_service() {
    let busy = |request| async {
        sleep(10 * MS).await;
        hello(request).await
    };
    let service = ServiceBuilder::new()
        .layer(layer(Scripted::answering(250 * MS)))
        .layer(ConcurrencyLimitLayer::new(5))
        .service(service_fn(busy));
    assert_eq!(fifty(service).await, (0, 350 * MS), "ten turns of five");
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_frees_its_place_at_the_inner_service() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let busy = move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            sleep(100 * MS).await;
            hello(request).await
        }
    };
    let service = ServiceBuilder::new()
        .layer(layer(Scripted::answering(MS)))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(service_fn(busy));
    let send = || service.clone().oneshot(Request::new(Full::default()));
    let first = tokio::spawn(send());
    sleep(10 * MS).await;
    assert!(
        tokio::time::timeout(20 * MS, send()).await.is_err(),
        "the first is in flight"
    );
    let started = Instant::now();
    send().await.unwrap();
    first.await.unwrap().unwrap();
    // 70 ms of the first call, and 100 ms of its own, with tokio's timers rounded up.
    assert!(
        (170 * MS..175 * MS).contains(&started.elapsed()),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// A service that counts its clones. Each instance must be made ready before each call.
#[derive(Default)]
struct CountedClones {
    ready: bool,
    fails: bool,
    clones: Arc<AtomicU32>,
}

impl Clone for CountedClones {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, Ordering::SeqCst);
        Self {
            ready: false,
            fails: self.fails,
            clones: Arc::clone(&self.clones),
        }
    }
}

impl Service<Request<Body>> for CountedClones {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.fails {
            return Poll::Ready(Err("not ready any more"));
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without being ready"
        );
        std::future::ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test(start_paused = true)]
async fn immediate_answer_makes_no_clone_and_a_later_one_makes_two() {
    for (layer, clones) in [
        (layer(MemoryStore::new()), 0),
        (layer(Scripted::answering(MS)), 2),
    ] {
        let inner = CountedClones::default();
        let count = Arc::clone(&inner.clones);
        let mut service = layer.layer(inner);
        for request in 1..=3 {
            let request_future = {
                let service = service.ready().await.unwrap();
                service.call(Request::new(Full::default()))
            };
            assert_eq!(request_future.await.unwrap().status(), StatusCode::OK);
            assert_eq!(count.load(Ordering::SeqCst), request * clones);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_error_of_the_inner_service_is_passed_on() {
    // Ready when the request arrives, and no longer ready after the check.
    let inner = CountedClones {
        ready: true,
        fails: true,
        ..CountedClones::default()
    };
    let answer = layer(Scripted::answering(MS))
        .layer(inner)
        .call(Request::new(Full::default()))
        .await;
    assert_eq!(answer.unwrap_err(), "not ready any more");
}

#[tokio::test(start_paused = true)]
async fn completed_future_stays_pending() {
    let stores: [Box<dyn Fn() -> RateLimitLayer>; 2] = [
        Box::new(|| layer(MemoryStore::new())),
        Box::new(|| layer(Scripted::answering(MS))),
    ];
    for layer in stores {
        for fails in [false, true] {
            let inner = CountedClones {
                ready: true,
                fails,
                ..CountedClones::default()
            };
            let mut service = layer().layer(service_fn(hello));
            let mut future = Box::pin(service.call(Request::new(Full::default())));
            assert!(future.as_mut().await.is_ok());
            assert!(tokio::time::timeout(MS, future).await.is_err());

            let mut future = Box::pin(layer().layer(inner).call(Request::new(Full::default())));
            drop(future.as_mut().await);
            assert!(tokio::time::timeout(MS, future).await.is_err());
        }
        let mut service = layer().cost(|_| u32::MAX).layer(service_fn(hello));
        let mut future = Box::pin(service.call(Request::new(Full::default())));
        assert_eq!(future.as_mut().await.unwrap().status(), 422);
        assert!(
            tokio::time::timeout(MS, future).await.is_err(),
            "after a rejection"
        );
    }
}

#[test]
fn future_is_send_whatever_the_error_of_the_inner_service() {
    const fn is_send<T: Send>(_: &T) {}

    let inner = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Rc<str>>>());
    is_send(
        &layer(MemoryStore::new())
            .layer(inner)
            .call(Request::new(Full::default())),
    );
}

/// The most headers that a response can have.
const MOST: usize = 24_576;

#[tokio::test]
async fn response_with_the_maximum_of_headers_is_passed_on() {
    let crowded = |missing: usize| {
        service_fn(move |_: Request<Body>| async move {
            let mut response = Response::new(Body::default());
            for number in 0..MOST - missing {
                let name = HeaderName::try_from(format!("x-{number}")).unwrap();
                response
                    .headers_mut()
                    .insert(name, HeaderValue::from_static("1"));
            }
            Ok::<_, Infallible>(response)
        })
    };
    for missing in 0..=4 {
        let service = layer(MemoryStore::new()).layer(crowded(missing));
        let response = service
            .oneshot(Request::new(Full::default()))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers().len(), (MOST - missing + 3).min(MOST));
    }
}

/// A rejected request's future may be kept for long before it is polled.
#[tokio::test]
async fn rejected_request_takes_no_place_of_the_inner_service() {
    let once = |name: &str, key: Arc<dyn KeyExtractor>| {
        let quota = Quota::per_hour(1);
        RateLimitLayer::fixed_window(RateLimiter::in_memory(), name, quota, key).unwrap()
    };
    let global = || Arc::new(Global);
    let keyless = Arc::new(Header::new("x-user").unwrap());
    for (layer, status) in [
        (once("forbidden", global()).forbid(|_| true), 403),
        (once("keyless", keyless), 400),
        (once("denied", global()).cost(|_| 2), 422),
    ] {
        let service = ServiceBuilder::new()
            .layer(layer)
            .layer(ConcurrencyLimitLayer::new(1));
        let mut service = service.service_fn(hello);
        let mut other = service.clone();
        let rejected = service
            .ready()
            .await
            .unwrap()
            .call(Request::new(Full::default()));
        let is_ready = tokio::time::timeout(MS, other.ready()).await.is_ok();
        assert!(
            is_ready,
            "{status}: the place is free before the response is polled"
        );
        assert_eq!(rejected.await.unwrap().status(), status);
    }
}
