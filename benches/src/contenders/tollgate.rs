//! tollgate, in each of its ways.

use std::time::Duration;

use http::request::Parts;
use tollgate::key::{Global, Header, from_fn};
use tollgate::store::{Prefetch, RedisStoreBuilder};
use tollgate::{ConfigError, Key, Limit, Quota, RateLimitLayer, RateLimiter, RedisStore};
use tower::Layer;

use super::{Allowance, Contender, handler};
use crate::load::{KEY, send};
use crate::redis_server::Server;
use crate::users::{tenant_of, user};

/// An algorithm by its name.
#[derive(Clone, Copy)]
pub struct Algorithm {
    pub name: &'static str,
    make: fn(&str, Quota) -> Result<Limit, ConfigError>,
    /// Whether it has a burst and a rate, and not a number in a period.
    has_rate: bool,
    /// The most units.
    capacity: u32,
}

pub const TOKEN_BUCKET: Algorithm = Algorithm {
    name: "token bucket",
    make: Limit::token_bucket,
    has_rate: true,
    capacity: u32::MAX,
};

/// All six, the sliding window with one cell and with ten; of the leaky bucket the meter, since the
/// queue makes requests wait.
pub const ALGORITHMS: [Algorithm; 7] = [
    TOKEN_BUCKET,
    Algorithm { name: "leaky bucket", make: Limit::leaky_bucket_meter, ..TOKEN_BUCKET },
    Algorithm { name: "GCRA", make: Limit::gcra, ..TOKEN_BUCKET },
    Algorithm {
        name: "fixed window",
        make: Limit::fixed_window,
        has_rate: false,
        capacity: u32::MAX,
    },
    Algorithm {
        name: "sliding window",
        make: Limit::sliding_window,
        has_rate: false,
        capacity: u32::MAX,
    },
    Algorithm {
        name: "sliding window of 10",
        make: |name, quota| Limit::sliding_window_with(name, quota, 10),
        has_rate: false,
        capacity: u32::MAX,
    },
    Algorithm { name: "sliding log", make: Limit::sliding_log, has_rate: false, capacity: 1_000 },
];

impl Algorithm {
    /// The limit, for what is allowed.
    pub fn limit(&self, name: &str, Allowance { burst, every_ms }: Allowance) -> Limit {
        let every = Duration::from_millis(every_ms.into());
        let burst = burst.min(self.capacity);
        let quota = if self.has_rate {
            Quota::new(1, every).burst(burst.into())
        } else {
            Quota::new(burst.into(), every * burst)
        };
        (self.make)(name, quota).expect("the numbers are in range")
    }
}

pub fn on_redis(server: &Server, algorithm: Algorithm) -> Contender {
    let name = format!("tollgate, {}", algorithm.name);
    contender(server, name, move |builder, allowance| async move {
        let limit = algorithm.limit("user", allowance);
        layer(&RateLimiter::new(connect(builder).await), limit)
    })
}

/// Without its memory of refusals.
pub fn always_asking(server: &Server, algorithm: Algorithm) -> Contender {
    let name = format!("tollgate, {}, always asking", algorithm.name);
    contender(server, name, move |builder, allowance| async move {
        let limit = algorithm.limit("user", allowance);
        layer(&RateLimiter::new(connect(builder.deny_for(Duration::ZERO)).await), limit)
    })
}

/// With blocks of units that are spent locally.
pub fn leased(server: &Server) -> Contender {
    contender(server, "tollgate, leased".to_owned(), |builder, allowance| async move {
        let limit = TOKEN_BUCKET.limit("user", allowance);
        let store = Prefetch::builder(connect(builder).await).limit_up_to(&limit, 100_000).build();
        layer(&RateLimiter::new(store.expect("a bucket can be leased")), limit)
    })
}

/// A user's limit, a tenant's and everybody's, in one check.
pub fn three_on_redis(server: &Server) -> Contender {
    contender(server, "tollgate, three limits".to_owned(), |builder, allowance| async move {
        let by_user = Header::new(KEY).expect("it is a name");
        let by_tenant = from_fn(|parts: &Parts| Some(Key::new(tenant_of(user(&parts.headers)?))));
        RateLimitLayer::builder(RateLimiter::new(connect(builder).await))
            .limit(TOKEN_BUCKET.limit("user", allowance), by_user)
            .limit(TOKEN_BUCKET.limit("tenant", allowance), by_tenant)
            .limit(TOKEN_BUCKET.limit("all", allowance), Global)
            .build()
            .expect("the names are different")
    })
}

pub fn in_memory(algorithm: Algorithm) -> Contender {
    let name = format!("tollgate, {}", algorithm.name);
    Contender::tollgate(name, move |load, allowance| async move {
        let layer = layer(&RateLimiter::in_memory(), algorithm.limit("user", allowance));
        send(layer.layer(handler()), load, None).await
    })
}

fn layer(limiter: &RateLimiter, limit: Limit) -> RateLimitLayer {
    let by_user = Header::new(KEY).expect("it is a name");
    RateLimitLayer::builder(limiter).limit(limit, by_user).build().expect("it is one limit")
}

async fn connect(builder: RedisStoreBuilder) -> RedisStore {
    builder.connect().await.expect("Redis is there")
}

fn contender<F: Future<Output = RateLimitLayer>>(
    server: &Server,
    name: String,
    layer: impl Fn(RedisStoreBuilder, Allowance) -> F + Copy + 'static,
) -> Contender {
    let server = server.clone();
    Contender::tollgate(name, move |load, allowance| {
        let server = server.clone();
        async move {
            let builder = RedisStore::builder().url(server.url()).deadline(Duration::from_secs(5));
            let service = layer(builder, allowance).await.layer(handler());
            send(service, load, Some(&mut server.connection().await)).await
        }
    })
}
