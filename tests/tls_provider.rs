//! The crypto provider of the process is installed for TLS only. It is global, so this test has a
//! process of its own.

#![cfg(feature = "tls")]

use rustls::crypto::CryptoProvider;
use tollgate::RedisStore;

#[test]
fn only_a_tls_url_installs_a_crypto_provider() {
    let build = |url: &str| RedisStore::builder("tollgate").url(url).build().unwrap();
    build("redis://127.0.0.1/");
    assert!(CryptoProvider::get_default().is_none());
    // rustls would panic where two dependencies enable different providers.
    build("rediss://127.0.0.1/");
    assert!(CryptoProvider::get_default().is_some());
}
