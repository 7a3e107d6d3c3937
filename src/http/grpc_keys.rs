//! Key extractors for gRPC calls.

use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts;
use tonic::metadata::{AsciiMetadataKey, BinaryMetadataKey, MetadataMap};

use super::{Header, KeyExtractor, MissingKey};
use crate::model::Key;
use crate::units::ConfigError;

/// A key extractor for a metadata entry of a gRPC call.
///
/// An entry whose name ends with `-bin` is decoded, so that all spellings of its base64 have one
/// key. **Clients choose their metadata.** Use an entry that a gateway sets, or that authentication
/// has verified. An entry that is missing, empty or sent more than once gives no key.
#[derive(Clone, Debug)]
pub struct GrpcMetadata {
    header: Header,
    /// If it ends with `-bin`.
    binary: Option<BinaryMetadataKey>,
}

impl GrpcMetadata {
    /// Creates an extractor for the entry `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not the name of a metadata entry.
    pub fn new(name: &str) -> Result<Self, ConfigError> {
        let name = &*name.to_ascii_lowercase();
        let invalid = || {
            ConfigError::new(format!(
                "`{}` is not the name of a metadata entry; use a name such as `x-api-key` or \
                 `token-bin`",
                name.escape_debug()
            ))
        };
        let binary = match name.ends_with("-bin") {
            true => Some(BinaryMetadataKey::from_bytes(name.as_bytes()).map_err(|_| invalid())?),
            false => {
                AsciiMetadataKey::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
                None
            }
        };
        Ok(Self {
            header: Header::new(name)?,
            binary,
        })
    }
}

impl KeyExtractor for GrpcMetadata {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        let Some(name) = &self.binary else {
            return self.header.extract(parts);
        };
        let header = &self.header.0;
        // tonic decodes metadata, which it makes of headers. A second value is enough to reject
        // both.
        let mut headers = HeaderMap::new();
        for value in parts.headers.get_all(header).iter().take(2) {
            drop(headers.try_append(header.clone(), value.clone()));
        }
        let metadata = MetadataMap::from_headers(headers);
        let mut values = metadata.get_all_bin(name).iter();
        match (values.next().map(|value| value.to_bytes()), values.next()) {
            (Some(Ok(value)), None) if !value.is_empty() => Ok(Key::new(value)),
            (None, _) => Err(MissingKey::new(format!("the header `{name}` is missing"))),
            (_, Some(_)) => {
                let reason = format!("the header `{name}` is sent more than once");
                Err(MissingKey::new(reason).never_skipped())
            }
            (Some(_), None) => {
                let reason = format!("the header `{name}` is empty or malformed");
                Err(MissingKey::new(reason).never_skipped())
            }
        }
    }
}

/// A key extractor for the method of a gRPC call, such as `shop.Orders/Place`.
///
/// Clients choose the path of a call. So only the methods that are named have a key of their own.
/// All others share the key `OTHER`.
#[derive(Clone, Debug)]
pub struct GrpcMethod {
    /// Sorted.
    methods: Arc<[String]>,
}

impl GrpcMethod {
    /// Creates an extractor for these methods, each as `package.Service/Method`, with or without
    /// the `/` that a path begins with.
    ///
    /// # Errors
    ///
    /// Returns an error if a method has another form.
    pub fn among<M: AsRef<str>>(methods: impl IntoIterator<Item = M>) -> Result<Self, ConfigError> {
        let mut names = Vec::new();
        for method in methods {
            let name = method.as_ref();
            let name = name.strip_prefix('/').unwrap_or(name);
            let parts: Vec<_> = name.split('/').collect();
            if !matches!(*parts, [service, method] if !service.is_empty() && !method.is_empty()) {
                return Err(ConfigError::new(format!(
                    "`{}` is not a gRPC method; use `package.Service/Method`",
                    name.escape_debug()
                )));
            }
            names.push(name.to_owned());
        }
        names.sort_unstable();
        Ok(Self {
            methods: names.into(),
        })
    }
}

impl KeyExtractor for GrpcMethod {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        let path = parts.uri.path().strip_prefix('/').unwrap_or_default();
        let known = self
            .methods
            .binary_search_by(|method| method.as_str().cmp(path));
        Ok(Key::new(if known.is_ok() { path } else { "OTHER" }))
    }
}
