//! Holders of permits.

/// The identity of a process for one key: eight random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderId(pub(crate) [u8; 8]);

impl HolderId {
    /// The bytes, for a store elsewhere.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl From<[u8; 8]> for HolderId {
    fn from(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }
}
