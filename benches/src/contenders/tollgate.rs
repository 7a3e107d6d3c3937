//! tollgate, in each of its ways.

use std::time::Duration;

use http::request::Parts;
use tollgate::{
    Global, Header, Key, Limit, Quota, RateLimitLayer, RateLimiter, RedisStore, from_fn,
};
use tower::Layer;

use super::{Allowance, Contender, handler};
use crate::load::{KEY, send};
use crate::redis_server::Server;
use crate::users::{tenant_of, user};

/// Which limits a check has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A user's token bucket.
    One,
    /// A user's, a tenant's and everybody's, in one check.
    Three,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::One => "tollgate",
            Self::Three => "tollgate, three limits",
        }
    }
}

fn limit(name: &str, Allowance { burst, every_ms }: Allowance) -> Limit {
    let quota = Quota::new(1, Duration::from_millis(every_ms.into())).burst(burst.into());
    Limit::token_bucket(name, quota).expect("the numbers are in range")
}

pub(super) fn on_redis(server: &Server, kind: Kind) -> Contender {
    let server = server.clone();
    Contender::new(kind.name(), move |load, allowance| {
        let server = server.clone();
        async move {
            let store = RedisStore::builder().url(server.url()).deadline(Duration::from_secs(5));
            let limiter = RateLimiter::new(store.connect().await.expect("Redis is there"));
            let service = layer(&limiter, kind, allowance).layer(handler());
            send(service, load, Some(&mut server.connection().await)).await
        }
    })
}

pub(super) fn in_memory(kind: Kind) -> Contender {
    Contender::new(kind.name(), move |load, allowance| async move {
        send(layer(&RateLimiter::in_memory(), kind, allowance).layer(handler()), load, None).await
    })
}

fn layer(limiter: &RateLimiter, kind: Kind, allowance: Allowance) -> RateLimitLayer {
    let by_user = Header::new(KEY).expect("it is a name");
    let limit = |name| limit(name, allowance);
    let mut builder = RateLimitLayer::builder(limiter).limit(limit("user"), by_user);
    if kind == Kind::Three {
        let by_tenant = from_fn(|parts: &Parts| Some(Key::new(tenant_of(user(&parts.headers)?))));
        builder = builder.limit(limit("tenant"), by_tenant).limit(limit("all"), Global);
    }
    builder.build().expect("the names are different")
}
