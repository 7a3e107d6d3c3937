//! The CPU time of this process, and of Redis.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use redis::aio::MultiplexedConnection;

/// User and system time of this process, all threads together.
pub fn of_this_process() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process may ask about itself");
    duration(usage.user_time()) + duration(usage.system_time())
}

fn duration(time: TimeVal) -> Duration {
    let micros = time.tv_sec() * 1_000_000 + time.tv_usec();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// User and system time of the server, from `INFO cpu`.
pub async fn of_redis(redis: Option<&mut MultiplexedConnection>) -> Duration {
    let Some(redis) = redis else {
        return Duration::ZERO;
    };
    let mut ask = redis::cmd("INFO");
    let info: String = ask
        .arg("cpu")
        .query_async(redis)
        .await
        .expect("Redis answers INFO");
    let seconds = |field: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|value| value.parse().ok())
            .expect("the field is there")
    };
    Duration::from_secs_f64(seconds("used_cpu_user:") + seconds("used_cpu_sys:"))
}
