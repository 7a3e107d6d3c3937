//! trypema in its hybrid mode, which counts in the process and reports to Redis.

use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tower::service_fn;
use trypema::hybrid::HybridRateLimiterProvider;
use trypema::redis::RedisKey;
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use super::{Allowance, Contender, Side};
use crate::users::user;

pub(super) fn hybrid() -> Contender {
    Contender::new(Side::Reporter, "trypema, hybrid", |setup| async move {
        let Allowance { burst, every_ms } = setup.allowance;
        let seconds = (u64::from(burst) * u64::from(every_ms) / 1000).max(1);
        let client = redis::Client::open(setup.redis_url).expect("the URL is valid");
        let connection = client.get_connection_manager().await.expect("Redis is up");
        let limiter = HybridRateLimiterProvider::builder(connection)
            .window_size(WindowSize::seconds(seconds).expect("it is positive"))
            .build()
            .expect("the settings are valid");
        let rate = f64::from(burst) / seconds as f64;
        let rate = RateLimit::per_second(rate).expect("it is positive");
        service_fn(move |request: Request<Body>| {
            let limiter = Arc::clone(&limiter);
            let key = user(request.headers()).unwrap_or_default();
            let key = RedisKey::try_from(key.to_owned()).expect("it is valid");
            async move {
                let limiter = limiter.absolute();
                let here = limiter.try_inc(key.as_key_ref(), 1).expect("it is valid");
                let decision = match here {
                    Some(decision) => decision,
                    None => limiter.inc(&key, &rate, 1).await.expect("Redis answers"),
                };
                let mut response = Response::new(Body::empty());
                if !matches!(decision, RateLimitDecision::Allowed) {
                    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                }
                Ok(response)
            }
        })
    })
}
