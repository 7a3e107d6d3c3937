//! The memory of this process, and of Redis.

use std::fs;

use redis::aio::MultiplexedConnection;

/// The bytes of a page, on every platform that has `/proc`.
const PAGE: u64 = 4096;

/// The resident set of this process in bytes; 0 where there is no `/proc`.
pub fn of_this_process() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .unwrap_or(0)
        * PAGE
}

/// `used_memory` of the server in bytes.
pub async fn of_redis(redis: Option<&mut MultiplexedConnection>) -> u64 {
    let Some(redis) = redis else { return 0 };
    let mut ask = redis::cmd("INFO");
    let info: String = ask
        .arg("memory")
        .query_async(redis)
        .await
        .expect("Redis answers INFO");
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|bytes| bytes.parse().ok())
        .expect("the field is there")
}
