//! The terms that a new connection has to meet.

use std::sync::Arc;

/// The terms that a new connection has to meet.
pub(super) struct Terms {
    /// The start of every key, because a Redis user may have rights to no other.
    pub(super) prefix: Arc<str>,
    /// The name in `CLIENT LIST`.
    pub(super) client_name: Option<Arc<str>>,
    /// The hash tags of partitions, if the server is part of a cluster. Otherwise it must not be.
    pub(super) tags: Vec<String>,
}

impl Terms {
    pub(super) fn is_of_cluster(&self) -> bool {
        !self.tags.is_empty()
    }
}
