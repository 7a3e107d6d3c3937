//! The report as text.

use std::fmt::Write;

use super::report::{OfLimit, Report};
use crate::output::printable;
use crate::table;

/// The columns of a limit.
pub(super) const LIMITS: [&str; 7] =
    ["limit", "allowed", "denied", "share", "keys denied", "of keys", "worst minute"];
const NUMBERS: [&str; 6] = ["allowed", "denied", "share", "keys denied", "of keys", "requests"];

pub(super) fn text(report: &Report) -> String {
    let mut text = format!(
        "{} requests of {} keys ({}), from {} to {}\n",
        grouped(report.requests),
        grouped(report.keys),
        report.key,
        report.from,
        report.to
    );
    notes(report, &mut text);
    let mut limits = table::new(&LIMITS, &NUMBERS);
    limits.add_rows(report.limits.iter().map(cells));
    let _ = writeln!(text, "\n{limits}");
    // Of the others, --json and --html tell.
    for it in report.limits.iter().take(1).filter(|it| !it.most_denied.is_empty()) {
        let mut keys = table::new(&["key", "requests", "denied", "share"], &NUMBERS);
        for key in &it.most_denied {
            let share = super::report::share(key.denied, key.requests);
            let name = printable(&key.key);
            keys.add_row([name, grouped(key.requests), grouped(key.denied), percent(share)]);
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
fn notes(report: &Report, text: &mut String) {
    let lines = &report.lines;
    if let Some(first) = &lines.first_skipped {
        let (skipped, format) = (grouped(lines.skipped), &lines.format);
        let _ = writeln!(text, "{skipped} lines could not be read as {format}: {first}");
    }
    if lines.without_key > 0 {
        let _ = writeln!(text, "{} requests have no {}", grouped(lines.without_key), report.key);
    }
    if lines.out_of_order > 0 {
        let _ = writeln!(
            text,
            "{} lines are older than a line before them, and count at its time",
            grouped(lines.out_of_order)
        );
    }
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
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_shares_are_percentages() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.000_01, 0.25].map(percent), ["0 %", "< 0.01 %", "25.00 %"]);
    }
}
