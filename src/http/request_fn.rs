//! Functions of your application that read the head of a request.

use std::sync::Arc;

use http::request::Parts;

/// A function of a request's head, which a layer and its copies share.
pub(super) type RequestFn<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;
