//! TLS connections to Redis, with rustls.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use redis::{Client, ClientTlsConfig, ConnectionAddr, RedisError, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ClientConfig, Error as TlsError, RootCertStore};

use crate::units::ConfigError;

/// Certificates for TLS connections to Redis: a private CA, a client certificate, or both.
///
/// A store with a `rediss://` URL trusts the CAs of the operating system by default, and sends no
/// client certificate. All certificates and keys are PEM.
///
/// ```no_run
/// use tollgate::store::Tls;
/// use tollgate::RedisStore;
///
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::new()
///     .ca(std::fs::read("ca.crt")?)
///     .client_cert(std::fs::read("client.crt")?, std::fs::read("client.key")?);
/// let store = RedisStore::builder("shop").url("rediss://redis.internal:6379/").tls(tls);
/// let store = store.connect().await?;
/// # Ok(())
/// # }
/// ```
///
/// # The process's crypto provider
///
/// rustls uses the process's default `CryptoProvider`. Building a store with a `rediss://` URL
/// installs the provider of `ring` if there is none. To use another provider, install it before you
/// build the store. A store with a pool installs none.
#[derive(Clone, Default)]
#[must_use = "certificates do nothing until a store is built with them"]
pub struct Tls {
    ca: Option<Vec<u8>>,
    client: Option<ClientTlsConfig>,
}

impl Tls {
    /// Trusts the CAs of the operating system, and sends no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the CA certificates in this PEM, instead of the operating system's.
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// Sends a client certificate. `cert` is the PEM of the certificate and its intermediate CAs.
    /// `key` is the PEM of its unencrypted private key.
    pub fn client_cert(mut self, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client = Some(ClientTlsConfig {
            client_cert: cert.into(),
            client_key: key.into(),
        });
        self
    }

    /// Checks that rustls can use the certificates. Otherwise the first connection would fail.
    fn check(&self) -> Result<(), ConfigError> {
        let mut roots = RootCertStore::empty();
        if let Some(pem) = &self.ca {
            for cert in certificates(pem, "Tls::ca")? {
                roots.add(cert).map_err(|error| {
                    ConfigError::new(format!("a certificate of `Tls::ca` is malformed: {error}"))
                })?;
            }
        }
        let Some(client) = &self.client else {
            return Ok(());
        };
        let chain = certificates(&client.client_cert, "Tls::client_cert")?;
        let key = PrivateKeyDer::from_pem_slice(&client.client_key).map_err(|error| {
            ConfigError::new(format!(
                "the key of `Tls::client_cert` is not the PEM of an unencrypted private key: \
                 {error}"
            ))
        })?;
        ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|config| {
                config
                    .with_root_certificates(roots)
                    .with_client_auth_cert(chain, key)
            })
            .map(drop)
            .map_err(|error| {
                ConfigError::new(format!(
                    "the certificate and the key of `Tls::client_cert` cannot be used: {error}"
                ))
            })
    }
}

impl fmt::Debug for Tls {
    /// Omits certificates and keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca.is_some())
            .field("client_cert", &self.client.is_some())
            .finish()
    }
}

/// The certificates of a PEM: at least one.
fn certificates(pem: &[u8], of: &str) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let certs: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| ConfigError::new(format!("the PEM of `{of}` is malformed: {error}")))?;
    if certs.is_empty() {
        return Err(ConfigError::new(format!(
            "the PEM of `{of}` holds no certificate; add a `-----BEGIN CERTIFICATE-----` section"
        )));
    }
    Ok(certs)
}

/// The process's default provider. Installs one if there is none.
///
/// The Redis client uses the default. Without one, rustls panics if dependencies enable different
/// providers.
fn provider() -> Arc<CryptoProvider> {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread has installed a provider.
        drop(ring::default_provider().install_default());
    }
    CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(ring::default_provider()))
}

/// A client for a `rediss://` URL. `unusable` is the error of a URL that makes no client.
pub(super) fn client(
    url: &str,
    tls: Option<Tls>,
    unusable: fn(&dyn fmt::Display) -> ConfigError,
) -> Result<Client, ConfigError> {
    let tls = tls.unwrap_or_default();
    tls.check()?;
    provider();
    let certificates = TlsCertificates {
        client_tls: tls.client,
        root_cert: tls.ca,
    };
    let client = Client::build_with_tls(url, certificates).map_err(|error| unusable(&error))?;
    if matches!(
        client.get_connection_info().addr(),
        ConnectionAddr::TcpTls { insecure: true, .. }
    ) {
        return Err(ConfigError::new(
            "the Redis URL ends with `#insecure`, and certificates are always verified; remove it, \
             and pass the server's CA to `Tls::ca`",
        ));
    }
    Ok(client)
}

/// The reason and the advice for a failed connection, if TLS is the reason.
pub(super) fn failure(error: &RedisError) -> Option<String> {
    let error = tls_error(error)?;
    let advice = match error {
        TlsError::InvalidCertificate(invalid) => advice(invalid),
        TlsError::InvalidMessage(_) => {
            "the server does not speak TLS on this port; use its TLS port, or `redis://`"
        }
        TlsError::AlertReceived(_) => {
            "the server ended the TLS handshake; if it requires a client certificate, pass one of \
             its CA to `Tls::client_cert`"
        }
        _ => "the TLS handshake failed",
    };
    Some(format!("{advice} ({error})"))
}

const fn advice(invalid: &CertificateError) -> &'static str {
    use CertificateError as Cert;

    match invalid {
        // A bad signature: the server's CA has the name of a trusted CA, and another key.
        Cert::UnknownIssuer | Cert::BadSignature => {
            "the server's certificate is signed by a CA that is not trusted; pass the CA to \
             `Tls::ca`"
        }
        Cert::Expired | Cert::ExpiredContext { .. } => {
            "the server's certificate has expired; renew it"
        }
        Cert::NotValidYet | Cert::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet; check the clocks"
        }
        Cert::NotValidForName | Cert::NotValidForNameContext { .. } => {
            "the server's certificate is not for the host in the URL; use a host that it names"
        }
        _ => "the server's certificate is rejected",
    }
}

/// The rustls error inside an error of the Redis client, which wraps it in an I/O error in an
/// `Arc`.
fn tls_error(error: &RedisError) -> Option<&TlsError> {
    let source = error
        .source()?
        .downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    source
        .downcast_ref::<io::Error>()?
        .get_ref()?
        .downcast_ref()
}
