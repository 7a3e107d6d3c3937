//! A server that speaks the protocol of Redis, with replies that a test chooses.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub struct FakeRedis {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl FakeRedis {
    /// Answers each command with the reply of `answer`, which gets its name in capitals and its
    /// arguments. `None` closes the connection.
    pub fn start(
        answer: impl Fn(&str, &[Vec<u8>]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (answer, connections) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                let answer = Arc::clone(&answer);
                std::thread::spawn(move || serve(&stream, &*answer));
            }
        });
        Self { port, connections }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        format!("redis://limiter:hunter2@{}/", self.address())
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// The replies of a healthy server while a store connects.
pub fn greeting(command: &str, arguments: &[Vec<u8>]) -> Option<Vec<u8>> {
    Some(match (command, arguments.get(1).map(Vec::as_slice)) {
        ("PING", _) => b"+PONG\r\n".to_vec(),
        // The dry run has two keys and no check; the probe reports nothing.
        ("EVALSHA", Some(b"2")) => b"*0\r\n".to_vec(),
        // One server has all keys.
        ("EVAL", _) if arguments[0].starts_with(b"-- Finds out") => b":1\r\n".to_vec(),
        ("EVAL", _) => b"*0\r\n".to_vec(),
        ("AUTH" | "CLIENT" | "SELECT", _) => b"+OK\r\n".to_vec(),
        ("SCRIPT", _) => b"$2\r\nok\r\n".to_vec(),
        _ => return None,
    })
}

/// The reply to a call of the script: its own number, and those behind it.
pub fn reply_to(arguments: &[Vec<u8>], numbers: &[i64]) -> Vec<u8> {
    let keys: usize = String::from_utf8_lossy(&arguments[1])
        .parse()
        .expect("a call says how many keys it has");
    let number = arguments[2 + keys]
        .first_chunk()
        .map(|number| u16::from_be_bytes(*number))
        .expect("a request begins with the number of its call");
    let mut reply = format!("*{}\r\n:{number}\r\n", numbers.len() + 1);
    for number in numbers {
        reply += &format!(":{number}\r\n");
    }
    reply.into_bytes()
}

fn serve(stream: &TcpStream, answer: &impl Fn(&str, &[Vec<u8>]) -> Option<Vec<u8>>) {
    let mut input = BufReader::new(stream);
    while let Some(command) = read_command(&mut input) {
        let Some((name, arguments)) = command.split_first() else {
            return;
        };
        let name = String::from_utf8_lossy(name).to_uppercase();
        let Some(reply) = answer(&name, arguments) else {
            return;
        };
        let mut output = stream;
        if output.write_all(&reply).is_err() {
            return;
        }
    }
}

/// An array of bulk strings.
fn read_command(input: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let count = read_number(input, '*')?;
    (0..count)
        .map(|_| {
            let length = read_number(input, '$')?;
            let mut bytes = vec![0; length + 2];
            input.read_exact(&mut bytes).ok()?;
            bytes.truncate(length);
            Some(bytes)
        })
        .collect()
}

fn read_number(input: &mut impl BufRead, kind: char) -> Option<usize> {
    let mut line = String::new();
    input.read_line(&mut line).ok()?;
    line.trim_end().strip_prefix(kind)?.parse().ok()
}
