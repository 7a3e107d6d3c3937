//! The process's crypto provider, which has a process of its own here.

#![cfg(feature = "tls")]

use rustls::crypto::CryptoProvider;
use tollgate::RedisStore;

#[test]
fn only_a_tls_url_installs_a_crypto_provider() {
    let build = |url: &str| RedisStore::builder().url(url).build().unwrap();
    build("redis://127.0.0.1/");
    assert!(CryptoProvider::get_default().is_none());
    // Not left to rustls, which panics where two dependencies enable different providers.
    build("rediss://127.0.0.1/");
    assert!(CryptoProvider::get_default().is_some());
}
