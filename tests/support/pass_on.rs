//! What a proxy in front of Redis does: it passes commands on to a real server, and its replies
//! back.

use std::sync::Mutex;

use redis::{Connection, ConnectionLike, RedisResult, Value};

use super::RedisServer;

/// A proxy's connection to a server, which all of its clients share.
pub struct Upstream(Mutex<Connection>);

impl Upstream {
    pub fn of(server: &RedisServer) -> Self {
        Self(Mutex::new(server.connection()))
    }

    /// The server's reply to a command, as bytes.
    pub fn pass_on(&self, name: &str, arguments: &[Vec<u8>]) -> Vec<u8> {
        let command = redis::cmd(name).arg(arguments).get_packed_command();
        let reply = self.0.lock().unwrap().req_packed_command(&command);
        bytes(reply)
    }
}

fn bytes(reply: RedisResult<Value>) -> Vec<u8> {
    match reply {
        Ok(Value::Nil) => b"$-1\r\n".to_vec(),
        Ok(Value::Okay) => b"+OK\r\n".to_vec(),
        Ok(Value::Int(number)) => format!(":{number}\r\n").into_bytes(),
        Ok(Value::SimpleString(text)) => format!("+{text}\r\n").into_bytes(),
        Ok(Value::BulkString(text)) => {
            let head = format!("${}\r\n", text.len());
            [head.as_bytes(), &text, b"\r\n"].concat()
        }
        Ok(Value::Array(values)) => {
            let head = format!("*{}\r\n", values.len()).into_bytes();
            let values = values.into_iter().map(|value| bytes(Ok(value)));
            std::iter::once(head).chain(values).flatten().collect()
        }
        Ok(Value::ServerError(error)) => {
            let text = format!(
                "-{} {}\r\n",
                error.code(),
                error.details().unwrap_or_default()
            );
            text.into_bytes()
        }
        Ok(other) => panic!("a server of version 2 of the protocol replied {other:?}"),
        Err(error) => {
            let code = error.code().unwrap_or("ERR");
            let detail = error.detail().unwrap_or_default();
            format!("-{code} {detail}\r\n").into_bytes()
        }
    }
}
