//! The report of a replay.

use jiff::Timestamp;
use serde::Serialize;

use super::clients::PrivateClients;
use super::comparison::{Comparison, MINUTE};
use super::format::names_of_fields;
use super::key::KeySpec;
use super::request::Request;
use super::suggest::Suggestion;
use crate::output::shortened;

/// The outcomes of the lines.
#[derive(Debug, Default, Serialize)]
pub(super) struct Lines {
    pub(super) format: String,
    pub(super) read: u64,
    pub(super) empty: u64,
    /// That could not be read, and why the first of them.
    pub(super) skipped: u64,
    pub(super) first_skipped: Option<String>,
    /// Of requests that lack a part of the key.
    pub(super) without_key: u64,
    /// The fields of the first of them, if it is JSON.
    #[serde(skip)]
    pub(super) fields_without_key: Option<String>,
    /// Lines whose time is before that of an earlier line, and that were put before it.
    pub(super) sorted: u64,
    /// Lines that were too old for that. They count at the time of the request that was decided
    /// before them.
    pub(super) late: u64,
    /// Clients in private networks, if they may be proxies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) private_clients: Option<PrivateClients>,
}

impl Lines {
    pub(super) fn skip_without_key(&mut self, request: &Request<'_>) {
        self.without_key += 1;
        if let (None, Some(json)) = (&self.fields_without_key, &request.json) {
            self.fields_without_key = Some(shortened(&names_of_fields(json)));
        }
    }

    pub(super) fn skip(&mut self, line: &str, why: &str) {
        self.skipped += 1;
        if self.first_skipped.is_none() {
            let (why, start) = (shortened(why), shortened(line));
            self.first_skipped = Some(format!("line {}: {why}: `{start}`", self.read));
        }
    }

    /// Where the lines went, for an error.
    pub(super) fn explained(&self, key: &KeySpec) -> String {
        let skipped = self
            .first_skipped
            .as_ref()
            .map(|it| format!(", the first is {it}"));
        let fields = self
            .fields_without_key
            .as_ref()
            .map(|it| format!(" (the fields of the first are: {it})"));
        format!(
            "of {} lines, {} have no {key}{}, and {} could not be read as {}{}",
            self.read,
            self.without_key,
            fields.unwrap_or_default(),
            self.skipped,
            self.format,
            skipped.unwrap_or_default()
        )
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) lines: Lines,
    pub(super) key: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) requests: u64,
    pub(super) keys: u64,
    pub(super) limits: Vec<OfLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suggestion: Option<Suggestion>,
    /// Requests by minute, for the plots.
    #[serde(skip)]
    pub(super) minutes: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize)]
pub(super) struct OfLimit {
    pub(super) limit: String,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) denied_share: f64,
    /// Keys with at least one denial.
    pub(super) keys_denied: u64,
    pub(super) keys_denied_share: f64,
    /// The minute with the most denials.
    pub(super) worst_minute: Option<Minute>,
    pub(super) most_denied: Vec<Denied>,
    /// Denials by minute, for the plots.
    #[serde(skip)]
    pub(super) minutes: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize)]
pub(super) struct Minute {
    pub(super) at: String,
    pub(super) requests: u64,
    pub(super) denied: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Denied {
    pub(super) key: String,
    pub(super) requests: u64,
    pub(super) denied: u64,
}

impl Report {
    pub(super) fn new(key: &KeySpec, lines: Lines, mut comparison: Comparison, top: usize) -> Self {
        comparison.end_minute();
        let limits = (0..comparison.simulations.len())
            .map(|number| of_limit(&comparison, number, top))
            .collect();
        Self {
            lines,
            key: key.to_string(),
            from: time(comparison.first_us),
            to: time(comparison.last_us),
            requests: comparison.requests(),
            keys: comparison.keys.len() as u64,
            limits,
            suggestion: None,
            minutes: comparison
                .minutes
                .iter()
                .map(|(at, it)| (*at, it.requests))
                .collect(),
        }
    }
}

fn of_limit(comparison: &Comparison, number: usize, top: usize) -> OfLimit {
    let denied: u64 = comparison.keys.values().map(|it| it.denied[number]).sum();
    let mut offenders: Vec<_> = comparison
        .keys
        .values()
        .filter(|it| it.denied[number] > 0)
        .collect();
    let keys_denied = offenders.len() as u64;
    offenders.sort_by(|a, b| (b.denied[number], &a.name).cmp(&(a.denied[number], &b.name)));
    let most_denied = offenders.iter().take(top).map(|it| Denied {
        key: it.name.to_string(),
        requests: it.requests,
        denied: it.denied[number],
    });
    // Of equal minutes, the first.
    let worst = comparison
        .minutes
        .iter()
        .rev()
        .max_by_key(|(_, it)| it.denied[number]);
    let worst = worst.filter(|(_, it)| it.denied[number] > 0);
    OfLimit {
        limit: comparison.simulations[number].spec.to_string(),
        allowed: comparison.requests() - denied,
        denied,
        denied_share: share(denied, comparison.requests()),
        keys_denied,
        keys_denied_share: share(keys_denied, comparison.keys.len() as u64),
        worst_minute: worst.map(|(at, it)| Minute {
            at: time(at * MINUTE),
            requests: it.requests,
            denied: it.denied[number],
        }),
        most_denied: most_denied.collect(),
        minutes: comparison
            .minutes
            .iter()
            .map(|(at, it)| (*at, it.denied[number]))
            .collect(),
    }
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// In UTC, to the second.
pub(super) fn time(at_us: u64) -> String {
    let seconds = i64::try_from(at_us / 1_000_000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| at_us.to_string(), |it| it.to_string())
}
