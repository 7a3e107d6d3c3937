//! Six algorithms, what each guarantees, and what it costs. If in doubt, use a token bucket.
//!
//! All pictures show decisions of the embedded store, in virtual time. Redis decides the same.
//!
//! # In short
//!
//! | you want | use | in any time, it allows at most |
//! |---|---|---|
//! | to limit an API: bursts are fine, floods are not | [`token_bucket`](crate::Limit::token_bucket) | `burst + rate * t` in a time `t` |
//! | the same, and you think in schedules | [`gcra`](crate::Limit::gcra) | the same: GCRA and a token bucket decide alike, to the microsecond |
//! | a called service to see no bursts | [`leaky_bucket`](crate::Limit::leaky_bucket) | one request per `period / limit`: the layer delays each until its turn |
//! | "about n per minute", for a small state | [`sliding_window`](crate::Limit::sliding_window) | n in a minute of even traffic, 2 n of uneven traffic |
//! | a contract that says "n in any minute" | [`sliding_log`](crate::Limit::sliding_log) | exactly n |
//! | a quota per hour, day or month | [`fixed_window`](crate::Limit::fixed_window) | n in a window, 2 n around its end |
//!
//! # The same requests under each
//!
#![doc = include_str!("pictures/algorithms.svg")]
//!
//! Each panel has the same 67 requests: a burst of 16, a few single ones, another burst, and then
//! 2.5 a second. Bars upwards are requests that were forwarded, bars downwards those that were
//! denied. The area behind them is what was left.
//!
//! - A **token bucket** and **GCRA** refill all the time. After a burst, one request a second
//!   passes. They make the same decisions, and differ only in their description. They share their
//!   state, so a rolling deployment can replace one by the other.
//! - A **leaky bucket** accepts the same requests, and forwards them evenly.
//! - A **sliding window** estimates. It weighs the previous period by its overlap with the window.
//!   The estimate assumes that the previous period's requests were spread evenly, so a burst counts
//!   for longer than it should.
//! - A **sliding log** forgets each request exactly one period later.
//! - A **fixed window** forgets all of them at once, when the window ends.
//!
//! # Bursts
//!
//! `burst` is how many requests may come at once. It does not change the rate. Without it, the
//! burst is the quota's limit.
//!
#![doc = include_str!("pictures/burst.svg")]
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Limit, Quota};
//!
//! # fn main() -> Result<(), tollgate::ConfigError> {
//! // A page that loads twelve things passes. A script that sends two a second gets one a second.
//! let pages = Limit::token_bucket("pages", Quota::per_second(1).burst(12))?;
//! // The same rate, and never two at once.
//! let evenly = Limit::token_bucket("evenly", Quota::per_second(1).burst(1))?;
//! // 100 in a minute, all at once if need be.
//! let minute = Limit::token_bucket("minute", Quota::per_minute(100))?;
//! # assert_eq!((pages.quota().capacity(), evenly.quota().capacity()), (12, 1));
//! # assert_eq!(minute.quota().capacity(), 100);
//! # assert_eq!(minute.quota(), Quota::new(100, Duration::from_secs(60)));
//! # Ok(())
//! # }
//! ```
//!
//! A burst needs a bucket, because windows and logs reject a quota with one.
//!
//! # A leaky bucket forwards evenly
//!
//! The others deny what comes too early. A leaky bucket lets it wait. The layer holds each request
//! until its turn, and denies one only if the queue is full. The queue's size is the burst.
//!
#![doc = include_str!("pictures/even_output.svg")]
//!
//! Waiting requests hold their connections. For a limit that clients meet, a token bucket is
//! kinder, because it answers at once, with `Retry-After`.
//! [`leaky_bucket_meter`](crate::Limit::leaky_bucket_meter) has the same budget and denies without
//! waiting. Requests can wait under any other algorithm. See [waiting](super::waiting).
//!
//! # A fixed window's end
//!
//! A fixed window is the cheapest to explain: "1,000 requests per day". Around its end it allows
//! twice its quota.
//!
#![doc = include_str!("pictures/window_end.svg")]
//!
//! So use it where the period is long, and where a client may use the whole quota at once. For "10
//! per second", it is the wrong choice.
//!
//! A window begins with a key's first request. With
//! [`fixed_window_aligned`](crate::Limit::fixed_window_aligned), it begins by the clock in UTC, for
//! all keys at once: a day at midnight, and a week on Thursday, as 1970 began. All clients come
//! back at once then.
//!
//! # A sliding window or a log
//!
//! A log keeps every request, and is exact. A window keeps two numbers, or one for each sub-window,
//! and estimates.
//!
#![doc = include_str!("pictures/window_or_log.svg")]
//!
//! More [sub-windows](crate::Limit::sliding_window_with) follow uneven traffic more closely. No
//! period that consists of whole sub-windows has more than the quota. One that begins within a
//! sub-window may have almost twice the quota, however many there are. Only a log rules that out.
//!
//! | | state of a key in Redis | exact |
//! |---|---|---|
//! | sliding window | two counters | for even traffic |
//! | sliding window of 10 sub-windows | 7 bytes more for each | at the sub-windows' borders |
//! | sliding log | 2 to 13 bytes for each request of the period | always |
//!
//! A log is for small quotas, because a client that uses its quota fills its log.
//!
//! # Several limits at once
//!
//! A layer takes any mix of them, and decides all in one call, for example a token bucket against
//! floods, and a fixed window for the daily quota. A request is charged to all of them, or to none.
//!
//! ```
//! use tollgate::key::PeerIp;
//! use tollgate::{ConfigError, Limit, Quota, RateLimitLayer, RateLimiter};
//!
//! fn limited(limiter: &RateLimiter) -> Result<RateLimitLayer, ConfigError> {
//!     let flood = Limit::token_bucket("flood", Quota::per_second(5).burst(20))?;
//!     let daily = Limit::fixed_window_aligned("daily", Quota::per_day(10_000))?;
//!     RateLimitLayer::new(limiter, flood, PeerIp)?.limit(daily, PeerIp)
//! }
//! # limited(&RateLimiter::in_memory()).unwrap();
//! ```
//!
//! Next: [keys](crate::guide::keys).
