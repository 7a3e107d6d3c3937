//! The choice of limits that waits for a look-up.

use std::task::{Context, Poll, ready};

use http::request::Parts;

use super::{Choosing, Inherited};
use crate::http::request_checks::{RejectedEarly, RequestChecks};
use crate::model::Check;

/// The checks of a request, of which some depend on a look-up.
pub(in crate::http) struct PendingChoice {
    pub(in crate::http) checks: Vec<Check>,
    pub(in crate::http) choosing: Choosing,
    pub(in crate::http) inherited: Inherited,
}

impl PendingChoice {
    /// Goes on with the look-up of a request. When it ends, returns what the request asks.
    pub(in crate::http) fn poll(
        &mut self,
        parts: &Parts,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RequestChecks, RejectedEarly>> {
        let choose = ready!(self.choosing.as_mut().poll(cx));
        Poll::Ready(match self.inherited.checks(choose(parts)) {
            Ok(chosen) => {
                self.checks.extend(chosen);
                RequestChecks::new(std::mem::take(&mut self.checks))
            }
            Err(reject) => Err(RejectedEarly::Rejected(reject)),
        })
    }
}
