//! A month of the calendar, beside two quotas of 30 days.

use std::error::Error;
use std::time::Duration;

use tollgate::{Limit, Quota};
use tollgate_charts::{Align, Chart, Panel};

use super::{TRAFFIC, WIDTH, row, titled, traffic};
use crate::requests::steady;
use crate::run::{Times, run_at};

const HOUR: u64 = 60 * 60;
const DAY: u64 = 24 * HOUR;

/// April 1, 2026, 00:00 in UTC.
const START: Duration = Duration::from_secs(1_775_001_600);

/// April 1 to May 20.
const DAYS: u64 = 49;

pub(crate) fn draw() -> Result<Chart, Box<dyn Error>> {
    let month = Quota::per_month(100).starting_on_day(15)?;
    let thirty_days = Quota::new(100, Duration::from_secs(30 * DAY));
    let limits = [
        (
            "Fixed window: a month from the 15th",
            Limit::fixed_window("api", month)?,
        ),
        (
            "Sliding log: 30 days",
            Limit::sliding_log("api", thirty_days)?,
        ),
        (
            "Token bucket: 30 days",
            Limit::token_bucket("api", thirty_days)?,
        ),
    ];
    // One request in two hours, from April 5 on.
    let arrivals: Vec<_> = steady(4 * DAY * 1_000, 2 * HOUR * 1_000, 12 * (DAYS - 4)).collect();
    let times = Times {
        start: START,
        length: Duration::from_secs(DAYS * DAY),
        sample: Duration::from_secs(HOUR),
    };
    let mut chart = Chart::new(
        WIDTH,
        560,
        "A customer that makes 12 requests a day from April 5 on, with 100 requests a month. A \
         month of the calendar from the 15th allows 100 until April 13, and 100 more from April 15 \
         on. A sliding log of 30 days allows 100 until April 13, and the next ones on May 5. A \
         token bucket of 30 days allows 100 at first, and then three or four a day.",
    );
    chart.heading(
        Align::Start,
        (48.0, 30.0),
        "100 a month, and 12 requests a day",
    );
    chart.legend((WIDTH as f64 - 400.0, 30.0), TRAFFIC);
    let ticks = [
        (0, "April 1"),
        (4, "April 5"),
        (14, "April 15"),
        (30, "May 1"),
        (44, "May 15"),
    ];
    let seconds = |days: u64| (days * DAY) as f64;
    for (number, (name, limit)) in limits.iter().enumerate() {
        let area = row(86.0 + number as f64 * 164.0, 116.0);
        let panel = Panel::new(area, 0.0..seconds(DAYS), -20.0..105.0);
        let run = run_at(limit, &arrivals, &times)?;
        traffic(&mut chart, &panel, &run, seconds(1));
        panel.left_axis(&mut chart, [(0.0, "0"), (100.0, "100")]);
        panel.bottom_axis(&mut chart, ticks.map(|(day, label)| (seconds(day), label)));
        titled(&mut chart, &area, name, &run);
    }
    Ok(chart)
}
