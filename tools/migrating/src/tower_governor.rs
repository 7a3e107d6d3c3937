use std::time::Duration;

use axum::{Router, routing::get};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};

pub(crate) fn app() -> Router {
    let conf = GovernorConfigBuilder::default()
        .per_millisecond(100)
        .burst_size(20)
        .finish()
        .unwrap();
    let limiter = conf.limiter().clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(60)).await;
            limiter.retain_recent();
        }
    });
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(GovernorLayer::new(conf));
    // The example ends here.
    app
}
