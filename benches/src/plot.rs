//! The decisions a second of the contenders, as bars: of every scenario, and of those that a
//! newcomer asks about.

use std::path::Path;

use tollgate_charts::{Align, Chart, Ink};

use crate::contenders::Side;
use crate::report::median_of;
use crate::sample::Sample;
use crate::scenario::Outcome;

/// The length of the longest bar.
const LONGEST: f64 = 490.0;
const NUMBERS: f64 = 110.0;
const CHARACTER: f64 = 6.7;
const BAR: f64 = 20.0;
const TITLE: f64 = 40.0;
const LEGEND: f64 = 34.0;

/// The scenarios of the short picture, and the contenders that it leaves out: variants of others.
const SHORT: [&str; 4] = [
    "256 at once, 10,000 keys",
    "256 at once, one hot key",
    "256 at once, one key that is denied",
    "256 at once, three limits (in one check; peers in three layers)",
];
const LEFT_OUT: [&str; 2] = ["no deny cache", "deadpool-redis"];

type Measured<'a> = [(&'a str, Vec<&'a Outcome>)];

/// Writes the picture of everything that was measured, and the short one.
pub fn draw(
    all_to: &Path,
    short_to: &Path,
    measured: &[(&str, Vec<Outcome>)],
) -> std::io::Result<()> {
    let all: Vec<_> = measured
        .iter()
        .map(|(title, outcomes)| (*title, outcomes.iter().collect()))
        .collect();
    write(all_to, &all)?;
    let is_shown = |it: &&Outcome| !LEFT_OUT.iter().any(|variant| it.name.contains(variant));
    let short = measured.iter().filter(|(title, _)| SHORT.contains(title));
    let short: Vec<_> = short
        .map(|(title, outcomes)| (*title, outcomes.iter().filter(is_shown).collect()))
        .collect();
    write(short_to, &short)
}

fn write(path: &Path, measured: &Measured<'_>) -> std::io::Result<()> {
    let bars: usize = measured.iter().map(|(_, outcomes)| outcomes.len()).sum();
    let height = LEGEND + bars as f64 * BAR + measured.len() as f64 * TITLE + 12.0;
    let description = "Decisions a second of tollgate and its peers, on one machine and one Redis.";
    let all = measured.iter().flat_map(|(_, outcomes)| outcomes);
    let longest_name = all.map(|it| it.name.len()).max().unwrap_or(0);
    let names = longest_name as f64 * CHARACTER + 12.0;
    let width = names + LONGEST + NUMBERS;
    let mut chart = Chart::new(width as u32, height as u32, description);
    let meaning = [
        (Ink::Allowed, "tollgate"),
        (Ink::Faint, "others"),
        (Ink::Level, "no rate limiting"),
    ];
    chart.legend((names, 24.0), meaning);
    let mut y = LEGEND;
    for (title, outcomes) in measured {
        y += TITLE;
        chart.heading(
            Align::Start,
            (names, y - 10.0),
            &format!("{title}: decisions a second"),
        );
        let rates: Vec<_> = outcomes
            .iter()
            .map(|it| median_of(&it.samples, Sample::rate))
            .collect();
        let most = rates.iter().copied().fold(1.0, f64::max);
        for (outcome, rate) in outcomes.iter().zip(rates) {
            let length = rate / most * LONGEST;
            let ink = match outcome.side {
                Side::Tollgate => Ink::Allowed,
                Side::Bare => Ink::Level,
                Side::Peer | Side::Reporter => Ink::Faint,
            };
            chart.rectangle(ink, (names, y + 2.0), (names + length, y + BAR - 3.0));
            let line = y + BAR - 6.0;
            chart.text(Ink::Text, Align::End, (names - 8.0, line), &outcome.name);
            let rate = grouped(rate);
            chart.text(Ink::Text, Align::Start, (names + length + 6.0, line), &rate);
            y += BAR;
        }
    }
    std::fs::write(path, format!("{chart}\n"))
}

/// `12345.6` as `12,346`.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    groups.join(",")
}
