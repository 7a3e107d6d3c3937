//! The permits that a request holds until its response ends.

use std::fmt;
use std::sync::Arc;

use crate::limiter::Permit;

/// The permits that a request holds. They are given back when the response body has ended and all
/// clones are dropped.
///
/// [`insert_permits`](crate::RateLimitLayer::insert_permits) puts it into the request's extensions,
/// for work that outlasts the response, such as an upgraded connection or a background task.
#[derive(Clone)]
pub struct InFlight {
    permits: Arc<[Permit]>,
    /// The permits of a layer outside.
    outside: Option<Arc<Self>>,
}

impl InFlight {
    /// The permits of one layer.
    pub(super) fn new(permits: Vec<Permit>) -> Self {
        Self {
            permits: permits.into(),
            outside: None,
        }
    }

    /// The same permits, with the permits of a layer outside.
    pub(super) fn inside(&self, outside: Option<Self>) -> Self {
        Self {
            permits: Arc::clone(&self.permits),
            outside: outside.map(Arc::new),
        }
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("permits", &self.permits)
            .field("outside", &self.outside)
            .finish()
    }
}
