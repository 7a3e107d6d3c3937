// The README's pictures, as data. A link's first definition counts.
#![cfg_attr(doc, doc = include_str!("guide/pictures/readme.md"))]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Nothing in a request can make the library panic.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]
// Nor can a `Duration::MAX` or a response that is full of headers: `clippy.toml` says what counts.
#![cfg_attr(
    not(test),
    warn(clippy::arithmetic_side_effects, clippy::disallowed_methods)
)]
// With all features, nothing is unused. With fewer, some helpers of their code are.
#![cfg_attr(
    not(all(
        feature = "config",
        feature = "http",
        feature = "metrics",
        feature = "redis"
    )),
    allow(dead_code, unused_imports)
)]

mod algorithm;
#[cfg(feature = "config")]
mod configuration;
#[cfg(feature = "http")]
mod http;
mod limiter;
mod model;
pub mod store;
mod telemetry;
mod units;

#[cfg(feature = "http")]
pub use http::RateLimitLayer;
pub use limiter::{Permit, RateLimiter, RateLimiterBuilder};
pub use model::{Check, Decision, Error, Key, Limit};
#[doc(inline)]
pub use store::MemoryStore;
#[cfg(feature = "redis")]
#[doc(inline)]
pub use store::RedisStore;
pub use units::{ConfigError, Quota};

/// Time in tests and dry runs.
///
/// You can control two clocks:
///
/// - The embedded store reads tokio's clock. In `#[tokio::test(start_paused = true)]`,
///   `tokio::time::advance` and `sleep` refill its budgets at once.
/// - With a [`ManualClock`](clock::ManualClock) you set the time of a store by hand, forwards and
///   backwards: [`MemoryStore::with_clock`], and `RedisStore::builder("shop").clock(...)`.
pub mod clock {
    pub use crate::units::ManualClock;
}

/// Limits from files and other sources, which change while a service runs.
///
/// A [`Config`](config::Config) is what a file says. A [`LimitSet`](config::LimitSet) has the
/// limits that are in force, and follows a [`ConfigSource`](config::ConfigSource).
/// [`RateLimitLayer::from_config`] limits a service by it. The file uses the
/// [`Names`](config::Names) that you give to your extractors, plans and costs.
#[cfg(feature = "config")]
pub mod config {
    pub use crate::configuration::{Config, ConfigSource, FileSource, Format};
    pub use crate::http::{LimitSet, Names};
    #[cfg(feature = "redis")]
    pub use crate::store::redis::RedisSource;
}

/// Answers to checks: decisions, their verdicts, receipts for refunds, and what is left of budgets.
pub mod decision {
    #[doc(no_inline)]
    pub use crate::model::Decision;
    pub use crate::model::{Source, Usage, Verdict};
    pub use crate::units::Receipt;
}

/// The keys that are denied most often: [`DeniedKeys`](denied_keys::DeniedKeys).
pub mod denied_keys {
    pub use crate::limiter::{DeniedKey, DeniedKeys, DeniedSummary};
}

/// Keys, and the extractors that take them from requests.
///
/// | extractor | key |
/// |---|---|
/// | `Extension` | a value in the request's extensions, such as a user id |
/// | `ClientIp` | the client's address, behind trusted proxies |
/// | `PeerIp` | the peer's address, without proxies |
/// | `Header` | a header that a gateway sets |
/// | `Host` | the host that the request names, in one spelling |
/// | `GrpcMetadata`, `GrpcMethod` | a metadata entry, or the method, of a gRPC call (feature `grpc`) |
/// | `Route` | method and path template of the matched route (feature `axum`) |
/// | `Global` | one key for all requests |
/// | `from_fn` | a closure |
///
/// `KeyExtractor::and` joins two keys, `KeyExtractor::or` falls back to another.
pub mod key {
    #[cfg(feature = "axum")]
    pub use crate::http::Route;
    #[cfg(feature = "http")]
    pub use crate::http::{
        And, ClientIp, ClientNetwork, Extension, FromFn, Global, Header, Host, KeyExtractor,
        MissingKey, Networks, Or, PeerIp, from_fn,
    };
    #[cfg(feature = "grpc")]
    pub use crate::http::{GrpcMetadata, GrpcMethod};
    #[doc(no_inline)]
    pub use crate::model::Key;
}

/// The tower layer, its settings, and its responses.
///
/// Start with [`RateLimitLayer`]. Its methods take these other types:
/// [`OnMissingKey`](layer::OnMissingKey), [`OnStoreFailure`](limit::OnStoreFailure),
/// [`IetfDraft`](layer::IetfDraft), [`BodyFormat`](layer::BodyFormat),
/// [`Rejection`](layer::Rejection) with its [`Reason`](layer::Reason), and for limits that are
/// chosen for each request [`ChosenLimits`](layer::ChosenLimits), [`Lookup`](layer::Lookup) and
/// [`LookupResult`](layer::LookupResult). Handlers use [`Settlement`](layer::Settlement).
#[cfg(feature = "http")]
pub mod layer {
    #[doc(no_inline)]
    pub use crate::http::RateLimitLayer;
    pub use crate::http::{
        BodyFormat, ChosenLimits, IetfDraft, InFlight, Lookup, LookupBuilder, LookupResult, Meter,
        OnMissingKey, RateLimit, Reason, Rejection, ResponseBody, ResponseFuture, Settlement,
        original_path,
    };
    #[doc(no_inline)]
    pub use crate::model::OnStoreFailure;
}

/// Exceptions for single keys, set while a service runs: [`Overrides`](overrides::Overrides).
pub mod overrides {
    pub use crate::limiter::Overrides;
    pub use crate::model::{Override, OverrideEffect};
}

/// Limits: a name, a quota and an algorithm, and what happens when the store is unavailable.
pub mod limit {
    #[doc(no_inline)]
    pub use crate::model::Limit;
    pub use crate::model::{Algorithm, BlockPolicy, OnStoreFailure};
    #[cfg(feature = "calendar")]
    pub use crate::units::Weekday;
    pub use crate::units::{Calendar, Period, Quota};
}

/// Boundaries for the histograms of a recorder. The
/// [guide](https://docs.rs/tollgate/latest/tollgate/guide/observability/) lists all metrics.
#[cfg(feature = "metrics")]
pub mod metrics {
    pub use crate::telemetry::HISTOGRAMS;
}

#[cfg(all(feature = "axum", any(doc, doctest)))]
pub mod guide {
    //! From the first limit to production. Documentation only.
    //!
    //! | question | page |
    //! |---|---|
    //! | which algorithm? | [algorithms] |
    //! | which key? | [keys], [behind a proxy](behind_a_proxy), [networks] |
    //! | which quota? | [quotas], [operating] (replay your access log), [shadow mode](shadow_mode) |
    #![cfg_attr(
        feature = "calendar",
        doc = "| a month, in the zone of the customer? | [calendar or rolling](calendar) |"
    )]
    #![cfg_attr(
        not(feature = "calendar"),
        doc = "| a month, in the zone of the customer? | calendar (feature `calendar`) |"
    )]
    //! | one quota for each plan? | [plans], [what is left](remaining) |
    #![cfg_attr(
        feature = "config",
        doc = "| one customer gets more, for a week? | [overrides] |"
    )]
    #![cfg_attr(
        not(feature = "config"),
        doc = "| one customer gets more, for a week? | overrides (feature `config`) |"
    )]
    //! | costs that are known later, such as LLM tokens? | [costs] |
    //! | requests that wait, or that are in flight? | [waiting], [in flight](in_flight), [permits] |
    //! | clients that keep sending? | [offenders] |
    //! | what do clients see? | [responses], [which clients read which headers](clients) |
    //! | where does the layer go? | [where the layer goes](where_the_layer_goes) |
    #![cfg_attr(feature = "grpc", doc = "| a gRPC server? | [gRPC](grpc) |")]
    #![cfg_attr(
        not(feature = "grpc"),
        doc = "| a gRPC server? | grpc (feature `grpc`) |"
    )]
    //! | how is a service tested? | [testing] |
    //! | which Redis? | [redis], [operating] (`tollgate doctor`) |
    //! | what if Redis is away? | [outages] |
    //! | no wait for Redis? | [asynchronous] limits |
    #![cfg_attr(
        feature = "yaml",
        doc = "| limits in a file? | [their format](limit_files), [changes](live_configuration) |"
    )]
    #![cfg_attr(
        not(feature = "yaml"),
        doc = "| limits in a file? | limit_files, live_configuration (feature `yaml`) |"
    )]
    #![cfg_attr(
        feature = "metrics",
        doc = "| what is going on? | [observability], [events] |"
    )]
    #![cfg_attr(
        not(feature = "metrics"),
        doc = "| what is going on? | observability (feature `metrics`), [events] |"
    )]
    //! | what do attackers try? | [security] |
    //! | what is guaranteed? | [guarantees] |
    //! | which Cargo features? | [features] |
    //! | coming from another limiter? | [migrating], and the well-known [recipes] for Redis |

    pub mod algorithms;

    #[doc = include_str!("guide/asynchronous.md")]
    #[doc = ""]
    #[doc = include_str!("guide/pictures/overshoot.svg")]
    #[doc = ""]
    #[doc = include_str!("guide/asynchronous_in_use.md")]
    pub mod asynchronous {}

    #[doc = include_str!("guide/outages.md")]
    #[doc = ""]
    #[doc = include_str!("guide/pictures/outage.svg")]
    #[doc = ""]
    #[doc = include_str!("guide/failures.md")]
    pub mod outages {}

    #[cfg(feature = "calendar")]
    #[doc = include_str!("guide/calendar.md")]
    #[doc = ""]
    #[doc = include_str!("guide/pictures/calendar.svg")]
    #[doc = ""]
    #[doc = include_str!("guide/calendar_in_use.md")]
    pub mod calendar {}

    /// Pages that are a file each.
    macro_rules! pages {
        ($($(#[$condition:meta])? $page:ident)*) => {$(
            $(#[$condition])?
            #[doc = include_str!(concat!("guide/", stringify!($page), ".md"))]
            pub mod $page {}
        )*};
    }

    pages! {
        behind_a_proxy
        clients costs events features
        #[cfg(feature = "grpc")] grpc
        guarantees in_flight keys
        #[cfg(feature = "config")] limit_files
        #[cfg(feature = "config")] live_configuration
        migrating networks
        #[cfg(feature = "metrics")] observability
        offenders operating
        #[cfg(feature = "config")] overrides
        permits plans quotas recipes
        #[cfg(feature = "redis")] redis
        remaining responses security shadow_mode testing waiting where_the_layer_goes
    }
}
