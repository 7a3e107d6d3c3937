//! tollgate, in each of its configurations.

use std::time::Duration;

use http::request::Parts;
use tollgate::key::{Global, Header, from_fn};
use tollgate::store::RedisStoreBuilder;
use tollgate::{ConfigError, Key, Limit, Quota, RateLimitLayer, RateLimiter, RedisStore};
use tower::Layer;

use super::{Allowance, Contender, Setup, Side, handler};
use crate::load::KEY;
use crate::users::{tenant_of, user};

/// An algorithm by its name.
#[derive(Clone, Copy)]
pub struct Algorithm {
    pub name: &'static str,
    make: fn(&str, Quota) -> Result<Limit, ConfigError>,
    /// Whether its quota is a burst and a rate, rather than a number in a period.
    has_rate: bool,
    /// The greatest capacity on Redis.
    capacity_on_redis: u32,
}

pub const TOKEN_BUCKET: Algorithm = Algorithm {
    name: "token bucket",
    make: Limit::token_bucket,
    has_rate: true,
    capacity_on_redis: u32::MAX,
};

pub const FIXED_WINDOW: Algorithm = Algorithm {
    name: "fixed window",
    make: Limit::fixed_window,
    has_rate: false,
    capacity_on_redis: u32::MAX,
};

/// All six: the sliding window with one sub-window and with ten, and the leaky bucket as a meter,
/// since the queue delays requests.
pub const ALGORITHMS: [Algorithm; 7] = [
    TOKEN_BUCKET,
    Algorithm {
        name: "leaky bucket",
        make: Limit::leaky_bucket_meter,
        ..TOKEN_BUCKET
    },
    Algorithm {
        name: "GCRA",
        make: Limit::gcra,
        ..TOKEN_BUCKET
    },
    FIXED_WINDOW,
    Algorithm {
        name: "sliding window",
        make: Limit::sliding_window,
        has_rate: false,
        capacity_on_redis: u32::MAX,
    },
    Algorithm {
        name: "sliding window of 10",
        make: |name, quota| Limit::sliding_window_with(name, quota, 10),
        has_rate: false,
        capacity_on_redis: u32::MAX,
    },
    Algorithm {
        name: "sliding log",
        make: Limit::sliding_log,
        has_rate: false,
        capacity_on_redis: 1_000,
    },
];

impl Algorithm {
    /// The limit with this allowance.
    pub fn limit(&self, name: &str, Allowance { burst, every_ms }: Allowance) -> Limit {
        let every = Duration::from_millis(every_ms.into());
        let quota = if self.has_rate {
            Quota::new(1, every).burst(burst.into())
        } else {
            Quota::new(burst.into(), every * burst)
        };
        (self.make)(name, quota).expect("the numbers are in range")
    }

    pub fn limit_on_redis(&self, name: &str, allowance: Allowance) -> Limit {
        let burst = allowance.burst.min(self.capacity_on_redis);
        self.limit(name, Allowance { burst, ..allowance })
    }
}

pub(super) fn on_redis(algorithm: Algorithm) -> Contender {
    on_redis_as(
        format!("tollgate, {}", algorithm.name),
        move |setup| async move {
            layer(
                &connect(&setup, |it| it).await,
                algorithm.limit_on_redis("user", setup.allowance),
            )
        },
    )
}

pub(super) fn without_deny_cache(algorithm: Algorithm) -> Contender {
    let name = format!("tollgate, {}, no deny cache", algorithm.name);
    on_redis_as(name, move |setup| async move {
        let store = connect(&setup, |it| it.deny_for(Duration::ZERO)).await;
        layer(&store, algorithm.limit_on_redis("user", setup.allowance))
    })
}

/// A fixed window that the process decides.
pub(super) fn asynchronous() -> Contender {
    let name = "tollgate, fixed window, asynchronous";
    on_redis_as(name.to_owned(), |setup| async move {
        let limit = FIXED_WINDOW.limit("user", setup.allowance).asynchronous();
        layer(
            &connect(&setup, |it| it).await,
            limit.expect("a window can be"),
        )
    })
}

/// A token bucket that the process decides, with an overshoot of 5 %.
pub(super) fn with_overshoot() -> Contender {
    let name = "tollgate, token bucket, 5 % overshoot";
    on_redis_as(name.to_owned(), |setup| async move {
        let limit = TOKEN_BUCKET.limit("user", setup.allowance);
        layer(
            &connect(&setup, |it| it).await,
            limit.with_overshoot_percent(5).expect("it is large enough"),
        )
    })
}

/// The limits of a user, of a tenant and of all requests, in one group.
pub(super) fn three_on_redis() -> Contender {
    on_redis_as("tollgate, three limits".to_owned(), |setup| async move {
        let by_user = Header::new(KEY).expect("the name is valid");
        let by_tenant = from_fn(|parts: &Parts| Some(Key::new(tenant_of(user(&parts.headers)?))));
        RateLimitLayer::new(
            connect(&setup, |it| it).await,
            TOKEN_BUCKET.limit("user", setup.allowance),
            by_user,
        )
        .unwrap()
        .limit(TOKEN_BUCKET.limit("tenant", setup.allowance), by_tenant)
        .unwrap()
        .limit(TOKEN_BUCKET.limit("all", setup.allowance), Global)
        .expect("the names are different")
    })
}

pub(super) fn in_memory(algorithm: Algorithm) -> Contender {
    let name = format!("tollgate, {}, in memory", algorithm.name);
    Contender::new(Side::Tollgate, &name, move |setup: Setup| async move {
        let limit = algorithm.limit("user", setup.allowance);
        layer(&RateLimiter::in_memory(), limit).layer(handler())
    })
    .in_memory()
}

/// The token bucket, with the decision in the extensions of request and response.
pub(super) fn in_memory_with_extensions() -> Contender {
    let name = "tollgate, token bucket, in memory, decision in extensions";
    Contender::new(Side::Tollgate, name, move |setup: Setup| async move {
        let limit = TOKEN_BUCKET.limit("user", setup.allowance);
        layer(&RateLimiter::in_memory(), limit)
            .insert_decision()
            .layer(handler())
    })
    .in_memory()
}

fn on_redis_as<F: Future<Output = RateLimitLayer>>(
    name: String,
    layer: impl Fn(Setup) -> F + Copy + 'static,
) -> Contender {
    Contender::new(Side::Tollgate, &name, move |setup| async move {
        layer(setup).await.layer(handler())
    })
}

fn layer(limiter: &RateLimiter, limit: Limit) -> RateLimitLayer {
    let by_user = Header::new(KEY).expect("the name is valid");
    RateLimitLayer::new(limiter, limit, by_user).expect("one limit is valid")
}

async fn connect(
    setup: &Setup,
    configure: fn(RedisStoreBuilder) -> RedisStoreBuilder,
) -> RateLimiter {
    let builder = RedisStore::builder("tollgate")
        .url(&*setup.redis_url)
        .deadline(Duration::from_secs(5));
    let store = configure(builder).connect().await;
    RateLimiter::new(store.expect("Redis is up"))
}
