//! tower_governor, in memory: with its defaults, and with headers, which tollgate always writes.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use tower::Layer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::{GovernorError, GovernorLayer};

use super::{Allowance, Contender, Setup, Side, handler};
use crate::load::KEY;

#[derive(Clone, Copy, Debug)]
pub struct User;

impl KeyExtractor for User {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let user = request
            .headers()
            .get(KEY)
            .and_then(|user| user.to_str().ok());
        user.map(str::to_owned)
            .ok_or(GovernorError::UnableToExtractKey)
    }
}

macro_rules! contender {
    ($name:literal, |$builder:ident| $config:expr) => {
        Contender::new(Side::Peer, $name, |setup: Setup| async move {
            let Allowance { burst, every_ms } = setup.allowance;
            let mut $builder = GovernorConfigBuilder::default().key_extractor(User);
            $builder
                .period(Duration::from_millis(every_ms.into()))
                .burst_size(burst);
            let config = $config.finish().expect("the numbers are not 0");
            GovernorLayer::<_, _, Body>::new(config).layer(handler())
        })
        .in_memory()
    };
}

pub(super) fn in_memory() -> Contender {
    contender!("tower_governor", |builder| builder)
}

pub(super) fn in_memory_with_headers() -> Contender {
    contender!("tower_governor, headers", |builder| builder.use_headers())
}
