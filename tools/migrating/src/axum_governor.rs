use axum::{Router, routing::get};
use axum_governor::{GovernorConfigBuilder, GovernorLayer, PeerIp, Quota, nz};

pub(crate) fn app() -> Router {
    let cfg = GovernorConfigBuilder::default()
        .with_extractor(PeerIp::default())
        .expect_connect_info()
        .quota_default(Quota::requests_per_second(nz!(10u32)).burst(nz!(20u32)))
        .finish()
        .unwrap();
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(GovernorLayer::new(cfg));
    // The example ends here.
    app
}

/// One request every 1.875 seconds.
pub(crate) fn slow() -> Router {
    let cfg = GovernorConfigBuilder::default()
        .with_extractor(PeerIp::default())
        .expect_connect_info()
        .quota_default(Quota::requests_per_minute(nz!(32u32)).burst(nz!(1u32)))
        .finish()
        .unwrap();
    Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(GovernorLayer::new(cfg))
}
