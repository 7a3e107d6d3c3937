use std::time::Duration;

use axum::{Router, routing::get};
use tower_rate_tier::{Quota, RateTier, TierIdentity, TierLimitLayer};

pub(crate) fn app() -> Router {
    let tiers = RateTier::builder()
        .tier("per-ip", Quota::with_window(20, Duration::from_secs(2)))
        .default_tier("per-ip")
        .build();
    let limit = TierLimitLayer::new(tiers).identifier_fn(|headers| {
        let ip = headers.get("x-peer-ip")?.to_str().ok()?;
        Some(TierIdentity::new(ip, "per-ip"))
    });
    // The example ends here.
    Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(limit)
}
