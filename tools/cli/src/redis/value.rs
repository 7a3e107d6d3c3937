//! What a packed value says. The scripts of the library write the formats, and document them in
//! their first lines.

use std::time::Duration;

use serde::Serialize;

use crate::duration::{exact, rounded};

/// The smallest number of a calendar, whose lowest two bits are its unit. It stands in place of
/// twice the period.
const FIRST_CALENDAR: u64 = 1 << 47;

/// A value, as an operator wants to know it.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub(super) enum Value {
    Bucket {
        /// Units that have not drained yet, rounded up.
        used: u64,
        /// The rate under which the last charge was made.
        rate: String,
        /// When the bucket is full again, in ms.
        full_in_ms: u64,
    },
    FixedWindow {
        /// One for each quota that checks have used, the last one first.
        windows: Vec<Window>,
    },
    SlidingWindow {
        used: u64,
        sub_windows: usize,
        sub_window: String,
    },
    SlidingLog {
        used: u64,
        requests: u64,
        period: String,
    },
    InFlight {
        in_flight: u64,
        waiting: u64,
        /// Processes that hold permits.
        holders: usize,
    },
    Offences {
        /// Denials that were counted towards a block.
        denials: u64,
        /// Until the block ends, in ms. 0: none stands.
        blocked_for_ms: u64,
    },
    /// A block by an operator stands in front of the budget.
    Blocked {
        /// Until the block ends, in ms. 0: it is over.
        blocked_for_ms: u64,
        /// `None`: nothing is used.
        #[serde(skip_serializing_if = "Option::is_none")]
        budget: Option<Box<Value>>,
    },
    /// No value of this version. The library counts it as a full budget.
    Unreadable,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Window {
    used: u64,
    period: String,
    ends_in_ms: u64,
}

/// Takes big-endian numbers off the front of a value.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self, bytes: usize) -> Option<u64> {
        let (number, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(
            number
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }
}

impl Value {
    /// Returns whether it is a block by an operator, and no budget.
    pub(super) fn is_block_alone(&self) -> bool {
        matches!(self, Self::Blocked { budget: None, .. })
    }

    /// Reads a value, at a time in microseconds since the Unix epoch.
    pub(super) fn read(value: &[u8], now: u64) -> Self {
        let Some((kind, rest)) = value.split_first() else {
            return Self::Unreadable;
        };
        let numbers = Numbers(rest);
        let read = match kind {
            1 => fixed_window(numbers, now),
            2 => sliding_window(numbers, now),
            3 => sliding_log(numbers, now),
            4 => bucket(numbers, now),
            8 => offences(numbers, now),
            9 => in_flight(numbers, now),
            10 => blocked(numbers, now),
            _ => None,
        };
        read.unwrap_or(Self::Unreadable)
    }

    /// Returns whether it is a budget of which nothing is used.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Bucket { .. } | Self::SlidingWindow { .. } | Self::SlidingLog { .. } => {
                self.used() == "0"
            }
            Self::FixedWindow { windows } => windows.iter().all(|window| window.used == 0),
            Self::Blocked {
                blocked_for_ms,
                budget,
            } => *blocked_for_ms == 0 && budget.as_ref().is_none_or(|budget| budget.is_full()),
            Self::InFlight { .. } | Self::Offences { .. } | Self::Unreadable => false,
        }
    }

    /// The units used, or what stands for them.
    pub(super) fn used(&self) -> String {
        match self {
            Self::Bucket { used, .. }
            | Self::SlidingWindow { used, .. }
            | Self::SlidingLog { used, .. } => used.to_string(),
            Self::FixedWindow { windows } => {
                windows.first().map_or(0, |window| window.used).to_string()
            }
            Self::InFlight { in_flight, .. } => in_flight.to_string(),
            Self::Offences { denials, .. } => denials.to_string(),
            Self::Blocked { budget, .. } => budget
                .as_ref()
                .map_or_else(|| "0".to_owned(), |budget| budget.used()),
            Self::Unreadable => "?".to_owned(),
        }
    }

    /// The rest, in words.
    pub(super) fn details(&self) -> String {
        match self {
            Self::Bucket {
                rate, full_in_ms, ..
            } => {
                format!(
                    "drains {rate}, full in {}",
                    rounded(Duration::from_millis(*full_in_ms))
                )
            }
            Self::FixedWindow { windows } => {
                let windows = windows.iter().enumerate().map(|(number, window)| {
                    let ends = rounded(Duration::from_millis(window.ends_in_ms));
                    let own = format!("window of {}, ends in {ends}", window.period);
                    if number == 0 {
                        own
                    } else {
                        format!("{own} ({} used)", window.used)
                    }
                });
                windows.collect::<Vec<_>>().join("; ")
            }
            Self::SlidingWindow {
                sub_windows,
                sub_window,
                ..
            } => {
                format!("{sub_windows} sub-windows of {sub_window}")
            }
            Self::SlidingLog {
                requests, period, ..
            } => {
                format!("{requests} in the last {period}")
            }
            Self::InFlight {
                waiting, holders, ..
            } => {
                format!("{waiting} waiting, of {holders} processes")
            }
            Self::Offences {
                blocked_for_ms: 0, ..
            } => "not blocked".to_owned(),
            Self::Offences { blocked_for_ms, .. } => {
                format!(
                    "blocked for {}",
                    rounded(Duration::from_millis(*blocked_for_ms))
                )
            }
            Self::Blocked {
                blocked_for_ms,
                budget,
            } => {
                let block = match blocked_for_ms {
                    0 => "no longer blocked".to_owned(),
                    ms => format!("blocked for {}", rounded(Duration::from_millis(*ms))),
                };
                match budget {
                    Some(budget) => format!("{block}; {}", budget.details()),
                    None => block,
                }
            }
            Self::Unreadable => "unreadable by this version: counts as full".to_owned(),
        }
    }
}

/// Parts of a unit: a unit has as many as microseconds in which `units` drain.
fn bucket(mut numbers: Numbers<'_>, now: u64) -> Option<Value> {
    let (at, used) = (numbers.next(7)?, numbers.next(7)?);
    let (units, micros) = (numbers.next(7)?, numbers.next(6)?);
    let _since = numbers.next(7)?;
    // What was given back, a reservation, or a slower rate.
    if units == 0 || micros == 0 || ![0, 7, 20, 21].contains(&numbers.0.len()) {
        return None;
    }
    let drained = now.saturating_sub(at).saturating_mul(units);
    let left = used.saturating_sub(drained);
    let period = exact(Duration::from_micros(micros));
    Some(Value::Bucket {
        used: left.div_ceil(micros),
        rate: format!("{units} in {period}"),
        full_in_ms: left.div_ceil(units).div_ceil(1_000),
    })
}

fn fixed_window(mut numbers: Numbers<'_>, now: u64) -> Option<Value> {
    let mut windows = Vec::new();
    loop {
        let (count, _at) = (numbers.next(7)?, numbers.next(7)?);
        let (stop, shape) = (numbers.next(7)?, numbers.next(6)?);
        let _since = numbers.next(7)?;
        // The first has no time of its last check.
        if !windows.is_empty() {
            numbers.next(7)?;
        }
        windows.push(Window {
            used: if now < stop { count } else { 0 },
            period: period_of(shape),
            ends_in_ms: stop.saturating_sub(now).div_ceil(1_000),
        });
        if numbers.0.is_empty() {
            return Some(Value::FixedWindow { windows });
        }
    }
}

fn sliding_window(mut numbers: Numbers<'_>, now: u64) -> Option<Value> {
    let counts = numbers.next(1)? as usize;
    let (length, at) = (numbers.next(6)?, numbers.next(7)?);
    let _since = numbers.next(7)?;
    if counts < 2 || length == 0 {
        return None;
    }
    // The newest first, and last the one that is leaving.
    let mut of_sub_windows = vec![0; counts];
    let moved = (now / length).saturating_sub(at / length);
    for number in 0..counts {
        let count = numbers.next(7)?;
        let place = usize::try_from(moved)
            .ok()
            .and_then(|moved| moved.checked_add(number));
        if let Some(place) = place.and_then(|place| of_sub_windows.get_mut(place)) {
            *place = count;
        }
    }
    let leaving = of_sub_windows.pop()?;
    let rest = u128::from(leaving) * u128::from(length - now % length);
    let part = rest.div_ceil(u128::from(length));
    Some(Value::SlidingWindow {
        used: of_sub_windows
            .iter()
            .try_fold(u64::try_from(part).ok()?, |sum, it| sum.checked_add(*it))?,
        sub_windows: counts - 1,
        sub_window: exact(Duration::from_micros(length)),
    })
}

fn sliding_log(mut numbers: Numbers<'_>, now: u64) -> Option<Value> {
    let (period, _most, _since) = (numbers.next(6)?, numbers.next(6)?, numbers.next(7)?);
    let (clock_bytes, sum_bytes) = (numbers.next(1)? as usize, numbers.next(1)? as usize);
    let (slots, first, entries) = (numbers.next(4)?, numbers.next(4)?, numbers.next(4)?);
    let (before, _oldest) = (numbers.next(7)?, numbers.next(7)?);
    let (newest, clock, sum) = (numbers.next(7)?, numbers.next(7)?, numbers.next(7)?);
    let size = clock_bytes + sum_bytes;
    let ring = usize::try_from(slots).ok()?.checked_mul(size)?;
    let is_empty = clock_bytes == 0 && sum_bytes == 0 && slots == 0;
    let has_sizes = (1..=7).contains(&clock_bytes) && (1..=7).contains(&sum_bytes);
    if !(is_empty || has_sizes) || entries > slots || numbers.0.len() != ring {
        return None;
    }
    let modulo = |bytes: usize| 1_u64 << (8 * bytes);
    let gone = now.saturating_sub(period);
    let (mut requests, mut used) = (0, 0);
    if newest > gone || now < period {
        (requests, used) = (1, sum.checked_sub(before)?);
    }
    // From the newest to the oldest.
    for number in (0..entries).rev() {
        let slot = usize::try_from((first + number) % slots).ok()?;
        let mut slot = Numbers(numbers.0.get(slot * size..)?);
        let (of_clock, of_sum) = (slot.next(clock_bytes)?, slot.next(sum_bytes)?);
        let age = clock.wrapping_sub(of_clock) % modulo(clock_bytes);
        if newest.checked_sub(age)? <= gone && now >= period {
            used = if requests == 0 {
                0
            } else {
                sum.wrapping_sub(of_sum) % modulo(sum_bytes)
            };
            break;
        }
        requests += 1;
    }
    Some(Value::SlidingLog {
        used,
        requests,
        period: exact(Duration::from_micros(period)),
    })
}

fn offences(mut numbers: Numbers<'_>, now: u64) -> Option<Value> {
    if numbers.0.len() != 39 {
        return None;
    }
    let (denials, _since) = (numbers.next(4)?, numbers.next(7)?);
    let ends_at = numbers.next(7)?;
    let blocked_for_ms = ends_at.saturating_sub(now).div_ceil(1_000);
    Some(Value::Offences {
        denials,
        blocked_for_ms,
    })
}

fn blocked(mut numbers: Numbers<'_>, now: u64) -> Option<Value> {
    let (ends_at, _length) = (numbers.next(7)?, numbers.next(7)?);
    let blocked_for_ms = ends_at.saturating_sub(now).div_ceil(1_000);
    let budget = match numbers.0 {
        [] => None,
        // One block stands in front of a budget, and none in front of another block.
        [10, ..] => return None,
        budget => Some(Box::new(Value::read(budget, now))),
    };
    Some(Value::Blocked {
        blocked_for_ms,
        budget,
    })
}

fn in_flight(mut numbers: Numbers<'_>, now: u64) -> Option<Value> {
    let holders = numbers.next(2)?;
    for _ in 0..4 {
        numbers.next(7)?;
    }
    let (mut in_flight, mut holding, mut waiting) = (0, 0, 0);
    for _ in 0..holders {
        let _id = numbers.next(8)?;
        let (granted, released) = (numbers.next(7)?, numbers.next(7)?);
        let (expires_at, _lease) = (numbers.next(7)?, numbers.next(7)?);
        let places = numbers.next(4)?;
        if expires_at > now {
            in_flight = granted.saturating_sub(released).saturating_add(in_flight);
            holding += usize::from(granted > released);
            waiting = places.saturating_add(waiting);
        }
    }
    Some(Value::InFlight {
        in_flight,
        waiting,
        holders: holding,
    })
}

/// The period of a window, by its shape.
fn period_of(shape: u64) -> String {
    match shape.checked_sub(FIRST_CALENDAR) {
        Some(calendar) => ["day", "week", "month", "year"][calendar as usize % 4].to_owned(),
        None => exact(Duration::from_micros(shape / 2)),
    }
}

#[cfg(test)]
mod tests;
