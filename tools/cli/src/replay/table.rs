//! The report as text.

use std::fmt::Write;
use std::net::IpAddr;

use super::clients::PrivateClients;
use super::report::{OfLimit, Report};
use crate::output::{counted, shortened};
use crate::table::{self, cell};

/// The columns of a limit.
pub(super) const LIMITS: [&str; 7] = [
    "limit",
    "allowed",
    "denied",
    "share",
    "keys denied",
    "of keys",
    "worst minute",
];
const NUMBERS: [&str; 6] = [
    "allowed",
    "denied",
    "share",
    "keys denied",
    "of keys",
    "requests",
];

pub(super) fn text(report: &Report) -> String {
    let mut text = format!(
        "{} of {} ({}), from {} to {}\n",
        counted(&grouped(report.requests), "request"),
        counted(&grouped(report.keys), "key"),
        report.key,
        report.from,
        report.to
    );
    for note in notes(report) {
        text += &note;
        text.push('\n');
    }
    let mut limits = table::markdown(&LIMITS, &NUMBERS);
    limits.add_rows(report.limits.iter().map(cells));
    let _ = writeln!(text, "\n{limits}");
    // --json and --html have those of the other limits.
    for it in report
        .limits
        .iter()
        .take(1)
        .filter(|it| !it.most_denied.is_empty())
    {
        let mut keys = table::markdown(&["key", "requests", "denied", "share"], &NUMBERS);
        for key in &it.most_denied {
            let share = super::report::share(key.denied, key.requests);
            let name = cell(&shortened(&key.key));
            keys.add_row([
                name,
                grouped(key.requests),
                grouped(key.denied),
                percent(share),
            ]);
        }
        let _ = writeln!(text, "\nMost denied by {}:\n{keys}", it.limit);
    }
    if let Some(found) = &report.suggestion {
        let _ = write!(
            text,
            "\nSuggested: {}. It denies {} of the requests ({}) and {} of the keys ({}).",
            found.limit,
            percent(found.denied_share),
            grouped(found.denied),
            percent(found.keys_denied_share),
            grouped(found.keys_denied)
        );
        if let Some(smaller) = &found.smaller {
            let _ = write!(
                text,
                "\n{} would deny {} of the requests and {} of the keys.",
                smaller.limit,
                percent(smaller.denied_share),
                percent(smaller.keys_denied_share)
            );
        }
    }
    text.trim_end().to_owned()
}

/// A limit, in [`LIMITS`].
pub(super) fn cells(it: &OfLimit) -> [String; 7] {
    [
        it.limit.clone(),
        grouped(it.allowed),
        grouped(it.denied),
        percent(it.denied_share),
        grouped(it.keys_denied),
        percent(it.keys_denied_share),
        worst_minute(it),
    ]
}

/// What a reader should know of the lines that do not count.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let lines = &report.lines;
    let lines_of = |number| counted(&grouped(number), "line");
    let mut notes = Vec::new();
    if let Some(first) = &lines.first_skipped {
        let (skipped, format) = (lines_of(lines.skipped), &lines.format);
        notes.push(format!("{skipped} could not be read as {format}: {first}"));
    }
    if lines.without_key > 0 {
        let requests = counted(&grouped(lines.without_key), "request");
        notes.push(format!("{requests} without {}", report.key));
    }
    if lines.sorted > 0 {
        let sorted = lines_of(lines.sorted);
        notes.push(format!(
            "{sorted} older than a line before, put in the order of their times"
        ));
    }
    if lines.late > 0 {
        let late = lines_of(lines.late);
        notes.push(format!(
            "{late} too far behind to be put in order (ten minutes, or 100,000 requests), counted at \
             the time of a line before"
        ));
    }
    if let Some(clients) = &lines.private_clients {
        notes.extend(private_clients(clients, report.requests));
    }
    notes
}

/// Warnings: behind a proxy that is counted as a client, all clients share a budget.
fn private_clients(clients: &PrivateClients, requests: u64) -> Vec<String> {
    let listed = |addresses: &[IpAddr]| {
        addresses
            .iter()
            .map(IpAddr::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut notes = Vec::new();
    if !clients.named_by_proxies.is_empty() {
        notes.push(format!(
            "warning: trusted proxies named clients in private networks: {}; if these are proxies, \
             all clients behind one are counted as one: add their networks to --trusted, and to \
             the trusted proxies of the service",
            listed(&clients.named_by_proxies)
        ));
    } else if clients.is_nearly_all(requests) {
        let help = match clients.has_forwarded_for {
            true => {
                "if these are proxies, add their networks to --trusted; if they are there already, \
                 X-Forwarded-For names proxies and not clients"
            }
            false => {
                "if these are proxies, log X-Forwarded-For (nginx: \"$http_x_forwarded_for\" at \
                 the end of log_format)"
            }
        };
        notes.push(format!(
            "warning: {} of {} are of private addresses ({}), and all clients behind one are \
             counted as one; {help}",
            grouped(clients.requests),
            counted(&grouped(requests), "request"),
            listed(&clients.most)
        ));
    }
    notes
}

fn worst_minute(it: &OfLimit) -> String {
    it.worst_minute.as_ref().map_or_else(
        || "-".to_owned(),
        |minute| {
            let (denied, requests) = (grouped(minute.denied), grouped(minute.requests));
            format!("{}: {denied} of {requests}", minute.at)
        },
    )
}

pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        percent if percent < 0.01 => "< 0.01 %".to_owned(),
        percent => format!("{percent:.2} %"),
    }
}

/// `1234567` as `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_shares_are_percentages() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [0.0, 0.000_01, 0.25].map(percent),
            ["0 %", "< 0.01 %", "25.00 %"]
        );
    }
}
