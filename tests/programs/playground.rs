//! The playground: what its server answers, and its page in headless Chromium.
//!
//! `make browser` installs the browser and runs the ignored test.

#![cfg(all(feature = "axum", feature = "redis"))]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{RedisServer, example};

/// Asks for a path, and returns the whole answer.
fn answer(port: u16, path: &str, headers: &str) -> String {
    answer_to(port, &format!("127.0.0.1:{port}"), path, headers)
}

fn answer_to(port: u16, host: &str, path: &str, headers: &str) -> String {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(
        connection,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn page_needs_nothing_from_elsewhere() {
    let example = example::start("playground", &[]);
    let page = answer(example.port, "/", "Connection: close\r\n");
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
    assert!(
        page.contains("content-security-policy: default-src 'none';"),
        "{page}"
    );
    for elsewhere in ["src=", "=\"//", "http:", "https:", "@import", "url("] {
        for (at, _) in page.match_indices(elsewhere) {
            // The page's script tells by the address whether it was loaded over TLS.
            assert!(
                page[at..].starts_with("https:\" ?"),
                "{}",
                &page[at.saturating_sub(20)..at + 20]
            );
        }
    }
}

#[test]
fn page_of_another_site_cannot_send_requests() {
    let example = example::start("playground", &[]);
    let upgrade = "Connection: upgrade, close\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let odd_scheme = format!("Origin: x://127.0.0.1:{}\r\n", example.port);
    for origin in [
        "Origin: https://evil.example\r\n",
        "Origin: null\r\n",
        "",
        &*odd_scheme,
    ] {
        let answer = answer(example.port, "/tab", &format!("{upgrade}{origin}"));
        assert!(answer.starts_with("HTTP/1.1 403"), "{origin}: {answer}");
    }
    // A name that its owner made an alias of this machine.
    let alias = format!("evil.example:{}", example.port);
    let headers = format!("{upgrade}Origin: http://{alias}\r\n");
    let answer = answer_to(example.port, &alias, "/tab", &headers);
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[test]
fn port_and_redis_that_cannot_be_used_are_errors_that_say_why() {
    let other = example::start("playground", &[]);
    let port = other.port.to_string();
    for (settings, why) in [
        (["PORT", "web"], "PORT is `web`; use 0 to 65535"),
        (["PORT", &port], "set PORT"),
        (["REDIS_URL", "redis://127.0.0.1:1/"], "127.0.0.1:1"),
    ] {
        let [name, value] = settings;
        let (succeeded, text) = example::run(example::program("playground").env(name, value));
        assert!(!succeeded && text.contains(why), "{settings:?}: {text}");
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/browser")
        .join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
#[ignore = "needs Chromium and Node.js: `make browser`"]
fn page_does_in_a_browser_what_it_shows() {
    let (code, redis) = (folder("code/src"), RedisServer::start());
    let status = Command::new("node")
        .args(["--test", "--test-reporter=spec", "playground.mjs"])
        .current_dir(folder(""))
        .env("EXAMPLE", example::program("playground").get_program())
        .env("REDIS_URL", redis.url())
        .env("CODE", &code)
        .status();
    assert!(status.expect("Node.js is installed").success());

    // The code that the page shows, as a crate of its own.
    let modules: Vec<_> = fs::read_dir(&code)
        .unwrap()
        .map(|file| {
            file.unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .filter(|name| name != "lib")
        .collect();
    assert_eq!(modules.len(), 14, "{modules:?}");
    let lib: String = modules
        .iter()
        .map(|name| format!("mod {name};\n"))
        .collect();
    fs::write(code.join("lib.rs"), format!("#![allow(dead_code)]\n{lib}")).unwrap();
    let project = env!("CARGO_MANIFEST_DIR");
    let manifest = format!(
        "[package]\nname = \"copied\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         tollgate = {{ path = \"{project}\", features = [\"calendar\"] }}\n"
    );
    let package = folder("code");
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::copy(
        Path::new(project).join("Cargo.lock"),
        package.join("Cargo.lock"),
    )
    .unwrap();
    let mut check = Command::new(env!("CARGO"));
    check
        .args(["check", "--quiet", "--offline"])
        .current_dir(&package);
    check
        .env("CARGO_TARGET_DIR", folder("code/target"))
        .env("RUSTFLAGS", "-D warnings");
    assert!(
        check.status().unwrap().success(),
        "code of the page does not compile"
    );
}
