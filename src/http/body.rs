//! The response body of the rate limit service.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;

use super::InFlight;

pin_project! {
    /// The response body of [`RateLimit`](crate::layer::RateLimit): the inner service's, or the
    /// body of a rejected request.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: BodyKind<B>,
    }
}

pin_project! {
    #[project = BodyKindProjection]
    #[derive(Debug)]
    enum BodyKind<B> {
        Inner { #[pin] body: B, permits: Option<InFlight> },
        Rejection { #[pin] body: Full<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    /// The inner service's body, which holds the permits of its request until it ends.
    pub(super) const fn inner(body: B, permits: Option<InFlight>) -> Self {
        Self {
            kind: BodyKind::Inner { body, permits },
        }
    }

    pub(super) fn rejection(body: Bytes) -> Self {
        Self {
            kind: BodyKind::Rejection {
                body: Full::new(body),
            },
        }
    }
}

/// The inner service's default body, for layers outside that answer with a default body.
impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::inner(B::default(), None)
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            BodyKindProjection::Inner { body, permits } => {
                let frame = ready!(body.poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    *permits = None;
                }
                Poll::Ready(frame)
            }
            BodyKindProjection::Rejection { body } => {
                body.poll_frame(cx).map_err(|never| match never {})
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Inner { body, .. } => body.is_end_stream(),
            BodyKind::Rejection { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Inner { body, .. } => body.size_hint(),
            BodyKind::Rejection { body } => body.size_hint(),
        }
    }
}
