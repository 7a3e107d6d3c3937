//! Digests of keys, so a budget can be named without its key.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::units::ConfigError;

/// The fewest bytes of a secret.
const SHORTEST: usize = 16;

/// The first half of an HMAC-SHA256.
const BYTES: usize = 16;

/// The secret under which keys are hashed. Without it, an address could be found by trying all.
#[derive(Clone)]
pub(crate) struct DigestSecret(Hmac<Sha256>);

/// The digest of a limit's name and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest([u8; BYTES]);

impl DigestSecret {
    /// The secret of a setting, which an error names.
    pub(crate) fn new(setting: &str, secret: &[u8]) -> Result<Self, ConfigError> {
        if secret.len() < SHORTEST {
            return Err(ConfigError::new(format!(
                "the secret of `{setting}` has {} bytes; use at least {SHORTEST} random bytes",
                secret.len()
            )));
        }
        match Hmac::new_from_slice(secret) {
            Ok(hmac) => Ok(Self(hmac)),
            Err(error) => Err(ConfigError::new(format!(
                "the secret of `{setting}`: {error}"
            ))),
        }
    }

    /// The digest of a budget, the same on all replicas with this secret.
    pub(crate) fn digest(&self, limit: &str, key: &str) -> Digest {
        let mut hmac = self.0.clone();
        hmac.update(limit.as_bytes());
        // No name contains this byte.
        hmac.update(&[0]);
        hmac.update(key.as_bytes());
        let mut bytes = [0; BYTES];
        let hash = hmac.finalize().into_bytes();
        bytes
            .iter_mut()
            .zip(hash)
            .for_each(|(byte, hash)| *byte = hash);
        Digest(bytes)
    }
}

impl Digest {
    pub(crate) const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// In hexadecimal.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
