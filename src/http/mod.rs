//! Everything that knows HTTP.

mod acquiring;
mod body;
mod charged_here;
mod charged_outside;
mod client_ip;
mod conclusion;
mod copied_limit;
mod extract;
mod fallbacks;
mod forwarding_peers;
mod future;
#[cfg(feature = "grpc")]
mod grpc_keys;
#[cfg(feature = "axum")]
mod handler_extractors;
mod headers;
mod host;
mod in_flight;
mod key_extractor;
mod layer;
mod limits;
#[cfg(feature = "config")]
mod live;
mod names;
mod number;
mod path;
mod peer;
mod pending_request;
mod policy;
mod request_checks;
mod request_fn;
mod request_limiter;
mod responder;
mod sampled;
mod service;
mod settlement;
mod stacked;

pub use body::ResponseBody;
pub use client_ip::{ClientIp, ClientNetwork, Networks};
#[cfg(feature = "axum")]
pub use extract::Route;
pub use extract::{Extension, Global, Header};
pub use future::ResponseFuture;
#[cfg(feature = "grpc")]
pub use grpc_keys::{GrpcMetadata, GrpcMethod};
pub use headers::IetfDraft;
pub use host::Host;
pub use in_flight::InFlight;
pub use key_extractor::{And, FromFn, KeyExtractor, MissingKey, Or, from_fn};
pub use layer::RateLimitLayer;
pub use limits::{ChosenLimits, Lookup, LookupBuilder, LookupResult};
#[cfg(feature = "config")]
pub use live::{LimitSet, Names};
pub use path::original_path;
pub use peer::PeerIp;
pub use policy::OnMissingKey;
pub use responder::{BodyFormat, Reason, Rejection};
pub use service::RateLimit;
pub use settlement::{Meter, Settlement};
