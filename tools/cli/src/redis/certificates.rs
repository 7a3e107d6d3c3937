//! The certificates of connections by TLS: `--ca`, `--cert` and `--key`.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use redis::{ClientTlsConfig, TlsCertificates};
use tollgate::store::Tls;

use crate::arguments::TlsArguments;

/// The contents of the files.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    ca: Option<Vec<u8>>,
    client: Option<Client>,
}

#[derive(Clone)]
struct Client {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl Certificates {
    /// Reads the files for a URL.
    pub(crate) fn read(arguments: &TlsArguments, url: &str) -> anyhow::Result<Self> {
        let ca = arguments.tls_ca.as_deref().map(read).transpose()?;
        let client = match (&arguments.tls_cert, &arguments.tls_key) {
            (Some(cert), Some(key)) => Some(Client {
                cert: read(cert)?,
                key: read(key)?,
            }),
            _ => None,
        };
        if (ca.is_some() || client.is_some()) && !is_tls(url) {
            bail!(
                "--ca, --cert and --key are for TLS; write rediss:// in the Redis URL, or leave \
                 them out"
            );
        }
        Ok(Self { ca, client })
    }

    /// As the library takes them. `None` if there are none.
    pub(crate) fn of_library(self) -> Option<Tls> {
        let tls = match (self.ca, self.client) {
            (None, None) => return None,
            (ca, client) => {
                let tls = ca.map_or_else(Tls::new, |ca| Tls::new().ca(ca));
                client
                    .map(|client| tls.clone().client_cert(client.cert, client.key))
                    .unwrap_or(tls)
            }
        };
        Some(tls)
    }

    /// As the client of Redis takes them. `None` if there are none.
    pub(super) fn of_client(&self) -> Option<TlsCertificates> {
        let client_tls = self.client.clone().map(|client| ClientTlsConfig {
            client_cert: client.cert,
            client_key: client.key,
        });
        let has_any = self.ca.is_some() || client_tls.is_some();
        has_any.then(|| TlsCertificates {
            client_tls,
            root_cert: self.ca.clone(),
        })
    }
}

/// Returns whether connections to a URL are by TLS.
pub(crate) fn is_tls(url: &str) -> bool {
    let url = url.trim_start().to_ascii_lowercase();
    ["rediss", "valkeys"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}
