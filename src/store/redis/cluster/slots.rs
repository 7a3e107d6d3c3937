//! The reply to `CLUSTER SLOTS`: which node has which slots.

use redis::Value;

/// A master, and a range of its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    first: u16,
    last: u16,
    /// Empty, if it is the host that was asked.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Range {
    pub(super) const fn contains(&self, slot: u16) -> bool {
        self.first <= slot && slot <= self.last
    }
}

/// The ranges of a reply. `None` if it is malformed.
pub(super) fn ranges(reply: Value) -> Option<Vec<Range>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    ranges.into_iter().map(range).collect()
}

/// `[first, last, master, replicas ...]`, each server as `[host, port, id, ...]`
fn range(range: Value) -> Option<Range> {
    let Value::Array(parts) = range else {
        return None;
    };
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(master),
        ..,
    ] = &*parts
    else {
        return None;
    };
    let [host, Value::Int(port), ..] = &**master else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        Value::SimpleString(host) => host.clone(),
        Value::Nil => String::new(),
        _ => return None,
    };
    let [first, last, port] = [first, last, port].map(|number| u16::try_from(*number).ok());
    // A node that does not know its own name says `?`.
    let host = if host == "?" { String::new() } else { host };
    Some(Range {
        first: first?,
        last: last?,
        host,
        port: port?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(reply: &[u8]) -> Option<Vec<Range>> {
        ranges(redis::parse_redis_value(reply).unwrap())
    }

    #[test]
    fn masters_are_read_and_replicas_are_left_out() {
        let reply = b"*2\r\n\
            *4\r\n:0\r\n:5460\r\n\
            *3\r\n$8\r\n10.0.0.1\r\n:7000\r\n$2\r\nab\r\n\
            *3\r\n$8\r\n10.0.0.4\r\n:7003\r\n$2\r\ncd\r\n\
            *3\r\n:5461\r\n:16383\r\n\
            *4\r\n$-1\r\n:7001\r\n$2\r\nef\r\n*0\r\n";
        let range = |first, last, host: &str, port| Range {
            first,
            last,
            host: host.into(),
            port,
        };
        let expected = [
            range(0, 5_460, "10.0.0.1", 7_000),
            range(5_461, 16_383, "", 7_001),
        ];
        assert_eq!(parsed(reply).unwrap(), expected);
    }

    #[test]
    fn malformed_reply_is_none() {
        for reply in [
            &b"+OK\r\n"[..],
            b"*1\r\n:1\r\n",
            b"*1\r\n*2\r\n:0\r\n:1\r\n",
            b"*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n:7\r\n",
            b"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:70000\r\n",
        ] {
            assert_eq!(parsed(reply), None, "{}", String::from_utf8_lossy(reply));
        }
    }
}
