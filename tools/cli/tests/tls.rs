//! The commands over TLS, on a real server with a private CA that requires a client certificate.

mod support;

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use self::support::{RedisServer, Run, free_port, tollgate};

/// A server, and the files of its CA and of a client.
struct TlsServer {
    _server: RedisServer,
    url: String,
    files: PathBuf,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl TlsServer {
    fn start() -> Self {
        let files = std::env::temp_dir().join(format!("tollgate-cli-tls-{}", free_port()));
        fs::create_dir_all(&files).unwrap();
        let write = |name: &str, pem: String| fs::write(files.join(name), pem).unwrap();
        let ca_key = KeyPair::generate().unwrap();
        let mut of_ca = params("ca.test");
        of_ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        write("ca.crt", of_ca.self_signed(&ca_key).unwrap().pem());
        let issuer = Issuer::new(of_ca, ca_key);
        for name in ["127.0.0.1", "operator"] {
            let key = KeyPair::generate().unwrap();
            write(
                &format!("{name}.crt"),
                params(name).signed_by(&key, &issuer).unwrap().pem(),
            );
            write(&format!("{name}.key"), key.serialize_pem());
        }
        let path = |name: &str| files.join(name).display().to_string();
        let start = |_| {
            let port = free_port();
            let arguments = [
                ["--tls-port".to_owned(), port.to_string()],
                ["--tls-ca-cert-file".to_owned(), path("ca.crt")],
                ["--tls-cert-file".to_owned(), path("127.0.0.1.crt")],
                ["--tls-key-file".to_owned(), path("127.0.0.1.key")],
                ["--tls-auth-clients".to_owned(), "yes".to_owned()],
            ];
            Some((
                RedisServer::start_on_with(free_port(), &arguments.concat())?,
                port,
            ))
        };
        let (server, port) = (0..10)
            .find_map(start)
            .expect("redis-server starts with TLS: it has to be built with it");
        Self {
            _server: server,
            url: format!("rediss://127.0.0.1:{port}/"),
            files,
        }
    }

    fn file(&self, name: &str) -> String {
        self.files.join(name).display().to_string()
    }

    /// Runs a command with all three files.
    fn run(&self, arguments: &[&str]) -> Run {
        let [ca, cert, key] = ["ca.crt", "operator.crt", "operator.key"].map(|it| self.file(it));
        tollgate(&[arguments, &["--ca", &ca, "--cert", &cert, "--key", &key]].concat())
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.files));
    }
}

#[test]
fn commands_reach_a_redis_with_a_private_ca_that_requires_a_certificate() {
    let server = TlsServer::start();
    let url = server.url.as_str();
    let limit = [
        "--name",
        "api",
        "--algorithm",
        "gcra",
        "--for",
        "1h",
        "--yes",
    ];
    let block = server.run(&[&["block", "alice", "--url", url], &limit[..]].concat());
    assert_eq!(block.code, 0, "{block:?}");
    let keys = server.run(&["keys", "--url", url]);
    assert!(keys.code == 0 && keys.out.contains("alice"), "{keys:?}");
    let peek = server.run(&[
        "peek", "alice", "--url", url, "--name", "api", "--limit", "gcra 5/s",
    ]);
    assert!(peek.out.starts_with("blocked: "), "{peek:?}");
    let doctor = server.run(&["doctor", url]);
    assert!(doctor.out.contains("a service can start"), "{doctor:?}");
}

#[test]
fn copy_uses_the_certificates_for_the_one_redis_that_has_tls() {
    let server = TlsServer::start();
    let plain = RedisServer::start();
    let (tls, plain) = (server.url.as_str(), plain.url());
    let limit = [
        "--name",
        "api",
        "--algorithm",
        "gcra",
        "--for",
        "1h",
        "--yes",
    ];
    let block = server.run(&[&["block", "alice", "--url", tls], &limit[..]].concat());
    assert_eq!(block.code, 0, "{block:?}");
    let copy = server.run(&["copy", "--url", tls, "--to-url", &plain, "--yes"]);
    assert!(copy.code == 0 && copy.out.contains("copied 2,"), "{copy:?}");
    let to = ["--to-url", tls, "--to-prefix", "other"];
    let back = server.run(&[&["copy", "--url", &plain, "--yes"], &to[..]].concat());
    assert!(back.code == 0 && back.out.contains("copied 2,"), "{back:?}");
}

#[test]
fn missing_and_misplaced_certificates_are_errors() {
    let server = TlsServer::start();
    let url = server.url.as_str();
    let without = tollgate(&["keys", "--url", url]);
    assert!(
        without.code == 2 && without.err.contains("cannot connect to"),
        "{without:?}"
    );
    let doctor = tollgate(&["doctor", url]);
    assert!(
        doctor.code == 1 && doctor.out.contains("certificates"),
        "{doctor:?}"
    );

    let plain = server.run(&["keys", "--url", "redis://127.0.0.1/"]);
    assert!(
        plain.code == 2 && plain.err.contains("write rediss://"),
        "{plain:?}"
    );
    let ca = server.file("none.crt");
    let missing = tollgate(&["keys", "--url", url, "--ca", &ca]);
    assert!(
        missing.code == 2 && missing.err.contains("cannot read"),
        "{missing:?}"
    );
    let cert = server.file("operator.crt");
    let half = tollgate(&["keys", "--url", url, "--cert", &cert]);
    assert!(half.code == 2 && half.err.contains("--key"), "{half:?}");
}
