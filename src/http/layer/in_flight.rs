//! The layer's settings for requests in flight.

use super::RateLimitLayer;
#[expect(unused_imports, reason = "for the documentation")]
use crate::http::InFlight;

/// # Requests in flight
impl RateLimitLayer {
    /// Puts the permits of a request into its extensions, as [`InFlight`]. Default: they are not
    /// there.
    ///
    /// The permits are given back when the response body has ended, and the last clone is dropped.
    /// An upgraded connection and background work outlast the response. For them, move the
    /// handler's clone into the task.
    pub fn insert_permits(self) -> Self {
        self.with(|limiter| limiter.inserts_permits = true)
    }
}
