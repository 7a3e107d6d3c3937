//! Everything that knows HTTP.

mod admission;
mod body;
mod extract;
mod future;
mod headers;
mod key_extractor;
mod layer;
mod number;
mod peer;
mod refusal;
mod service;
mod settings;

pub use body::ResponseBody;
#[cfg(feature = "axum")]
pub use extract::Route;
pub use extract::{Extension, Global, Header};
pub use future::ResponseFuture;
pub use headers::ResetFormat;
pub use key_extractor::{And, FromFn, KeyExtractor, MissingKey, Or, from_fn};
pub use layer::{RateLimitLayer, RateLimitLayerBuilder, UnkeyedLayer};
pub use peer::{PeerIp, PeerNetwork};
pub use service::RateLimit;
pub use settings::{OnMissingKey, OnStoreFailure};
