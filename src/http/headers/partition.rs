//! Partition keys: which budget of a limit a response reports, without the key itself.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::nouns::{Check, ConfigError};

/// The fewest bytes of a secret.
const SHORTEST: usize = 16;

/// The first half of an HMAC-SHA256.
const BYTES: usize = 16;

/// The secret under which keys are hashed. Without it, an address could be found by trying all.
#[derive(Clone)]
pub(super) struct PartitionSecret(Hmac<Sha256>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Partition([u8; BYTES]);

impl PartitionSecret {
    pub(super) fn new(secret: &[u8]) -> Result<Self, ConfigError> {
        if secret.len() < SHORTEST {
            return Err(ConfigError::new(format!(
                "the secret of `partition_key` has {} bytes; use at least {SHORTEST} random bytes",
                secret.len()
            )));
        }
        match Hmac::new_from_slice(secret) {
            Ok(hmac) => Ok(Self(hmac)),
            Err(error) => Err(ConfigError::new(format!("the secret of `partition_key`: {error}"))),
        }
    }

    /// The partition of a check's budget: the same on all replicas with this secret.
    pub(super) fn partition(&self, check: &Check) -> Partition {
        let mut hmac = self.0.clone();
        hmac.update(check.limit().name().as_bytes());
        // No name contains this byte.
        hmac.update(&[0]);
        hmac.update(check.key().as_str().as_bytes());
        let mut bytes = [0; BYTES];
        let hash = hmac.finalize().into_bytes();
        bytes.iter_mut().zip(hash).for_each(|(byte, hash)| *byte = hash);
        Partition(bytes)
    }
}

impl Partition {
    pub(super) const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
