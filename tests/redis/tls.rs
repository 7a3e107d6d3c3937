//! Redis over TLS, on a real server with a private CA.

#![cfg(feature = "redis")]

#[cfg(not(feature = "tls"))]
#[test]
fn tls_url_without_the_feature_is_an_error_that_names_it() {
    for url in [
        "rediss://127.0.0.1/",
        " REDISS://127.0.0.1/",
        "valkeys://127.0.0.1/",
    ] {
        let error = tollgate::RedisStore::builder("tollgate")
            .url(url)
            .build()
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("enable the feature `tls` of the crate `tollgate`"),
            "{error}"
        );
    }
}

#[cfg(feature = "tls")]
#[cfg(feature = "tls")]
mod with_the_feature {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use rcgen::{
        BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
    };
    use tollgate::store::{RedisStoreBuilder, Tls};
    use tollgate::{Key, Limit, Quota, RateLimiter, RedisStore};

    use crate::support::{RedisServer, free_port};

    const PASSWORD: &str = "hunter2";

    struct Ca {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
    }

    /// The PEM of a certificate and of its key.
    type Pair = (String, String);

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    impl Ca {
        fn new() -> Self {
            let key = KeyPair::generate().unwrap();
            let mut params = params("ca.test");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let pem = params.self_signed(&key).unwrap().pem();
            Self {
                pem,
                issuer: Issuer::new(params, key),
            }
        }

        fn signed(&self, params: &CertificateParams) -> Pair {
            let key = KeyPair::generate().unwrap();
            (
                params.signed_by(&key, &self.issuer).unwrap().pem(),
                key.serialize_pem(),
            )
        }
    }

    /// A server with a certificate, on a plain port and on one with TLS.
    struct TlsServer {
        plain: RedisServer,
        port: u16,
        files: PathBuf,
    }

    impl TlsServer {
        fn start(ca: &Ca, pair: &Pair, clients: &str) -> Self {
            Self::start_with(ca, pair, clients, &[])
        }

        fn start_with(ca: &Ca, (cert, key): &Pair, clients: &str, more: &[&str]) -> Self {
            static SERVERS: AtomicU32 = AtomicU32::new(0);
            let number = SERVERS.fetch_add(1, Ordering::Relaxed);
            let name = format!("tollgate-tls-{}-{number}", std::process::id());
            let files = std::env::temp_dir().join(name);
            fs::create_dir_all(&files).unwrap();
            let file = |name: &str, pem: &str| {
                fs::write(files.join(name), pem).unwrap();
                files.join(name).display().to_string()
            };
            let arguments = [
                ["--tls-ca-cert-file".to_owned(), file("ca.crt", &ca.pem)],
                ["--tls-cert-file".to_owned(), file("redis.crt", cert)],
                ["--tls-key-file".to_owned(), file("redis.key", key)],
                ["--tls-auth-clients".to_owned(), clients.to_owned()],
                ["--requirepass".to_owned(), PASSWORD.to_owned()],
            ]
            .concat();
            let start = |_| {
                let port = free_port();
                let tls_port = ["--tls-port".to_owned(), port.to_string()];
                let more: Vec<_> = more.iter().map(|&it| it.to_owned()).collect();
                let arguments = [&arguments[..], &tls_port, &more].concat();
                Some((RedisServer::start_on_with(free_port(), &arguments)?, port))
            };
            let (plain, port) = (0..10)
                .find_map(start)
                .expect("redis-server starts with TLS: it has to be built with it");
            Self { plain, port, files }
        }

        fn store(&self, scheme: &str, host: &str, port: u16) -> RedisStoreBuilder {
            RedisStore::builder("tollgate")
                .url(format!("{scheme}://:{PASSWORD}@{host}:{port}/"))
                .deadline(Duration::from_secs(20))
        }

        fn over_tls(&self) -> RedisStoreBuilder {
            self.store("rediss", "127.0.0.1", self.port)
        }
    }

    impl Drop for TlsServer {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(Path::new(&self.files)));
        }
    }

    /// The port of a server that answers in plain text.
    fn answers_in_plain_text() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap();
            // Until the client has closed: unread bytes would reset the connection.
            drop(stream.read_to_end(&mut Vec::new()));
        });
        port
    }

    async fn assert_limits(store: RedisStoreBuilder) {
        let limiter = RateLimiter::new(store.connect().await.unwrap());
        let limit = Limit::fixed_window("api", Quota::per_hour(1)).unwrap();
        assert!(
            limiter
                .check(&limit, &Key::new("alice"))
                .await
                .unwrap()
                .allowed()
        );
        assert!(
            !limiter
                .check(&limit, &Key::new("alice"))
                .await
                .unwrap()
                .allowed()
        );
    }

    /// The error of a failed connection, without the password or a panic.
    async fn failure(store: RedisStoreBuilder) -> String {
        let error = store.connect().await.unwrap_err().to_string();
        assert!(
            !error.contains(PASSWORD) && !error.contains("panicked"),
            "{error}"
        );
        error
    }

    /// A certificate for this machine, by name and address.
    fn of_this_machine(ca: &Ca) -> Pair {
        let mut names = params("localhost");
        names
            .subject_alt_names
            .extend(params("127.0.0.1").subject_alt_names);
        ca.signed(&names)
    }
    #[tokio::test]
    async fn cluster_is_reached_by_tls() {
        let ca = Ca::new();
        let of_cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
        let server = TlsServer::start_with(&ca, &of_this_machine(&ca), "no", &of_cluster);
        let mut connection = redis::Client::open(format!(
            "redis://:{PASSWORD}@127.0.0.1:{}/",
            server.plain.port()
        ))
        .and_then(|client| client.get_connection())
        .unwrap();
        let slots: Vec<_> = (0..16_384).collect();
        let () = redis::cmd("CLUSTER")
            .arg("ADDSLOTS")
            .arg(slots)
            .query(&mut connection)
            .unwrap();
        let mut is_ready = || {
            let info: String = redis::cmd("CLUSTER")
                .arg("INFO")
                .query(&mut connection)
                .unwrap();
            std::thread::sleep(Duration::from_millis(20));
            info.contains("cluster_state:ok")
        };
        assert!((0..500).any(|_| is_ready()), "the cluster is ready");
        let url = format!("rediss-cluster://:{PASSWORD}@localhost:{}", server.port);
        let store = || {
            RedisStore::builder("tollgate")
                .url(&url)
                .deadline(Duration::from_secs(20))
        };
        assert_limits(store().tls(Tls::new().ca(ca.pem.as_str()))).await;
        let untrusted = failure(store().tls(Tls::new().ca(Ca::new().pem))).await;
        assert!(
            untrusted.contains("pass the CA to `Tls::ca`"),
            "{untrusted}"
        );
    }
    #[tokio::test]
    async fn sentinels_and_their_master_are_reached_by_tls() {
        let ca = Ca::new();
        let replication = ["--tls-replication", "yes"];
        let server = TlsServer::start_with(&ca, &of_this_machine(&ca), "no", &replication);
        let port = free_port();
        let file = |name: &str| server.files.join(name).display().to_string();
        let lines = [
            "port 0".to_owned(),
            format!("tls-port {port}"),
            format!("tls-ca-cert-file {}", file("ca.crt")),
            format!("tls-cert-file {}", file("redis.crt")),
            format!("tls-key-file {}", file("redis.key")),
            "tls-auth-clients no".to_owned(),
            "tls-replication yes".to_owned(),
            format!("sentinel monitor limits 127.0.0.1 {} 1", server.port),
            format!("sentinel auth-pass limits {PASSWORD}"),
        ];
        fs::write(file("sentinel.conf"), lines.join("\n")).unwrap();
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut sentinel = std::process::Command::new(binary)
            .args([&file("sentinel.conf"), "--sentinel"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(sentinel.try_wait().unwrap().is_none(), "the sentinel ended");
        }
        let url = format!("rediss-sentinel://:{PASSWORD}@localhost:{port}/limits");
        let store = RedisStore::builder("tollgate")
            .url(&url)
            .deadline(Duration::from_secs(20));
        assert_limits(store.tls(Tls::new().ca(ca.pem.as_str()))).await;
        sentinel.kill().unwrap();
        sentinel.wait().unwrap();
    }

    #[tokio::test]
    async fn private_ca_is_trusted_for_addresses_and_names() {
        let ca = Ca::new();
        let server = TlsServer::start(&ca, &of_this_machine(&ca), "no");
        let store = |prefix, host| {
            let url = format!("rediss://:{PASSWORD}@{host}:{}/", server.port);
            RedisStore::builder(prefix)
                .url(url)
                .deadline(Duration::from_secs(20))
        };
        for host in ["127.0.0.1", "localhost"] {
            assert_limits(store(host, host).tls(Tls::new().ca(ca.pem.clone()))).await;
        }
        // Other certificates in the file do not matter.
        let bundle = [Ca::new().pem, ca.pem.clone()].concat();
        assert_limits(store("bundle", "127.0.0.1").tls(Tls::new().ca(bundle))).await;
    }

    #[tokio::test]
    async fn required_client_certificate_is_sent() {
        let ca = Ca::new();
        let server = TlsServer::start(&ca, &ca.signed(&params("127.0.0.1")), "yes");
        let tls = || Tls::new().ca(ca.pem.clone());
        let (cert, key) = ca.signed(&params("replica.test"));
        assert_limits(server.over_tls().tls(tls().client_cert(cert, key))).await;

        let error = failure(server.over_tls().tls(tls())).await;
        assert!(error.contains("`Tls::client_cert`"), "{error}");
        let (cert, key) = Ca::new().signed(&params("replica.test"));
        let error = failure(server.over_tls().tls(tls().client_cert(cert, key))).await;
        assert!(error.contains("`Tls::client_cert`"), "{error}");
    }

    #[tokio::test]
    async fn untrusted_or_plain_server_is_an_error_with_its_reason() {
        let ca = Ca::new();
        let tls = || Tls::new().ca(ca.pem.clone());
        let server = TlsServer::start(&ca, &ca.signed(&params("127.0.0.1")), "no");
        let plain = server.plain.port();
        let http = answers_in_plain_text();
        let mut expired = params("127.0.0.1");
        expired.not_after = date_time_ymd(2020, 1, 1);
        let expired = TlsServer::start(&ca, &ca.signed(&expired), "no");
        let mut early = params("127.0.0.1");
        early.not_before = date_time_ymd(4000, 1, 1);
        let early = TlsServer::start(&ca, &ca.signed(&early), "no");

        for (store, why) in [
            (server.over_tls(), "signed by a CA that is not trusted"),
            (
                server.over_tls().tls(Tls::new().ca(Ca::new().pem)),
                "signed by a CA that is not trusted",
            ),
            (
                server.store("rediss", "localhost", server.port).tls(tls()),
                "is not for the host",
            ),
            (expired.over_tls().tls(tls()), "has expired"),
            (early.over_tls().tls(tls()), "is not valid yet"),
            (
                server.store("rediss", "127.0.0.1", http),
                "does not speak TLS on this port",
            ),
            // Redis waits for the end of a line, which a handshake does not have.
            (
                server.store("rediss", "127.0.0.1", plain),
                "timed out; check that Redis runs there, and the URL's host, port and scheme",
            ),
            (
                server.store("redis", "127.0.0.1", server.port),
                "(`rediss://` is TLS)",
            ),
        ] {
            let error = failure(store).await;
            assert!(error.contains(why), "{why}: {error}");
        }
    }

    #[test]
    fn unusable_certificates_are_errors_of_the_builder() {
        let ca = Ca::new();
        let (cert, key) = ca.signed(&params("replica.test"));
        let (_, other_key) = ca.signed(&params("replica.test"));
        let broken = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
        let not_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let url = "rediss://:hunter2@127.0.0.1/";
        for (url, tls, why) in [
            (
                url,
                Tls::new().ca(""),
                "the PEM of `Tls::ca` holds no certificate",
            ),
            (
                url,
                Tls::new().ca(key.clone()),
                "the PEM of `Tls::ca` holds no certificate",
            ),
            (
                url,
                Tls::new().ca(broken),
                "the PEM of `Tls::ca` is malformed",
            ),
            (
                url,
                Tls::new().ca(not_x509),
                "a certificate of `Tls::ca` is malformed",
            ),
            (
                url,
                Tls::new().client_cert("", key.clone()),
                "`Tls::client_cert` holds no certificate",
            ),
            (
                url,
                Tls::new().client_cert(cert.clone(), ""),
                "is not the PEM of an unencrypted",
            ),
            (
                url,
                Tls::new().client_cert(cert.clone(), other_key),
                "cannot be used: keys may not be",
            ),
            (
                "redis://:hunter2@127.0.0.1/",
                Tls::new().ca(ca.pem.clone()),
                "write `rediss://`",
            ),
            (
                "rediss://:hunter2@127.0.0.1/#insecure",
                Tls::new(),
                "ends with `#insecure`",
            ),
            (
                " REDISS://:hunter2@127.0.0.1/#insecure",
                Tls::new(),
                "ends with `#insecure`",
            ),
            (
                "rediss://:hunter2@127.0.0.1/zero",
                Tls::new(),
                "the Redis URL cannot be used",
            ),
            (
                "rediss://:hunter2@127.0.0.1:99999/",
                Tls::new(),
                "the Redis URL cannot be used",
            ),
        ] {
            let builder = RedisStore::builder("tollgate").url(url).tls(tls);
            let error = builder.build().unwrap_err().to_string();
            assert!(
                error.contains(why) && !error.contains(PASSWORD),
                "{why}: {error}"
            );
        }
        let tls = Tls::new().client_cert(cert, key);
        assert_eq!(format!("{tls:?}"), "Tls { ca: false, client_cert: true }");
    }

    #[test]
    fn pool_and_tls_settings_are_an_error() {
        let pool = deadpool_redis::Config::from_url("redis://127.0.0.1/");
        let pool = pool
            .create_pool(Some(deadpool_redis::Runtime::Tokio1))
            .unwrap();
        let error = RedisStore::builder("tollgate")
            .pool(pool)
            .tls(Tls::new())
            .build()
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("a pool has certificates of its own"),
            "{error}"
        );
    }
}
