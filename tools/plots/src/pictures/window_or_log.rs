//! What a sliding window's estimate lets pass, against the log, which counts every request.

use std::error::Error;
use std::time::Duration;

use tollgate::{Limit, Quota};
use tollgate_charts::{Align, Chart, Ink, Panel};

use super::{WIDTH, per_bar, row, seconds};
use crate::requests::{steady, together};
use crate::run::{Run, run};

const SECONDS: u64 = 40;
const PERIOD: u64 = 10;

pub(crate) fn draw() -> Result<Chart, Box<dyn Error>> {
    let quota = Quota::new(10, Duration::from_secs(PERIOD));
    let limits = [
        ("Sliding window", Limit::sliding_window("api", quota)?),
        (
            "Sliding window of 10 sub-windows",
            Limit::sliding_window_with("api", quota, 10)?,
        ),
        ("Sliding log", Limit::sliding_log("api", quota)?),
    ];
    // A burst late in one period, and then without a pause in the next one.
    let arrivals = together([
        steady(8_000, 190, 10).collect(),
        steady(12_000, 400, 28).collect(),
        steady(29_000, 60, 14).collect(),
        steady(31_500, 600, 14).collect(),
    ]);
    let mut chart = Chart::new(
        WIDTH,
        600,
        "The requests that were allowed in the last ten seconds, under a limit of 10 in 10 seconds \
         and uneven traffic. A sliding window's estimate lets this number rise above 10 for a \
         while, more sub-windows less so. A sliding log never does.",
    );
    let title = "Uneven traffic under a limit of 10 in 10 seconds";
    chart.heading(Align::Start, (48.0, 30.0), title);
    let meaning = [
        (Ink::Allowed, "requests allowed"),
        (Ink::Level, "allowed in the last 10 s"),
    ];
    chart.legend((WIDTH as f64 - 370.0, 30.0), meaning);
    let ticks = seconds([0, 10, 20, 30, 40]);
    for (number, (name, limit)) in limits.iter().enumerate() {
        let area = row(86.0 + number as f64 * 178.0, 126.0);
        let panel = Panel::new(area, 0.0..SECONDS as f64, 0.0..20.0);
        let run = run(limit, &arrivals, SECONDS)?;
        let trailing = trailing(&run);
        panel.filled_steps(&mut chart, Ink::Level, &trailing);
        for (from, count) in per_bar(&run.forwarded(), 0.5) {
            panel.bar(&mut chart, Ink::Allowed, from..from + 0.5, 0.0..count);
        }
        panel.threshold(&mut chart, Ink::Denied, 10.0, "");
        panel.left_axis(&mut chart, [(0.0, "0"), (10.0, "10"), (20.0, "20")]);
        panel.bottom_axis(
            &mut chart,
            ticks.iter().map(|(at, label)| (*at, label.as_str())),
        );
        let most = trailing.iter().map(|(_, count)| *count).fold(0.0, f64::max);
        chart.heading(Align::Start, (area.left, area.top - 10.0), name);
        let result = format!("{}, at most {most} in 10 seconds", run.summary());
        let right = area.left + area.width;
        chart.text(Ink::Text, Align::End, (right, area.top - 10.0), &result);
    }
    Ok(chart)
}

/// How many requests were allowed in the period up to each moment.
fn trailing(run: &Run) -> Vec<(f64, f64)> {
    let allowed = run.forwarded();
    let moments = allowed.iter().flat_map(|at| [*at, *at + PERIOD as f64]);
    let mut moments: Vec<_> = moments
        .chain([0.0])
        .filter(|at| *at < SECONDS as f64)
        .collect();
    moments.sort_by(f64::total_cmp);
    let count = |now: f64| {
        let is_within = |at: &&f64| **at <= now && **at > now - PERIOD as f64;
        allowed.iter().filter(is_within).count() as f64
    };
    moments.into_iter().map(|now| (now, count(now))).collect()
}
