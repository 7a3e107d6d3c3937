//! One rate with three bursts.

use std::error::Error;
use std::time::Duration;

use tollgate::{Limit, Quota};
use tollgate_charts::{Align, Chart, Panel};

use super::{TRAFFIC, WIDTH, row, seconds, titled, traffic};
use crate::requests::{steady, together};
use crate::run::run;

const SECONDS: u64 = 40;

pub(crate) fn draw() -> Result<Chart, Box<dyn Error>> {
    // A page that loads twelve things, opened three times, and a script in between.
    let arrivals = together([
        steady(2_000, 40, 12).collect(),
        steady(16_000, 40, 12).collect(),
        steady(20_000, 500, 16).collect(),
        steady(34_000, 40, 12).collect(),
    ]);
    let mut chart = Chart::new(
        WIDTH,
        560,
        "A token bucket with one request a second and bursts of 1, 5 and 12. A larger burst lets a \
         page that loads twelve things at once pass. The rate over time is the same.",
    );
    chart.heading(
        Align::Start,
        (48.0, 30.0),
        "One request a second, with three bursts",
    );
    chart.legend((WIDTH as f64 - 400.0, 30.0), TRAFFIC);
    let ticks = seconds([0, 10, 20, 30, 40]);
    for (number, burst) in [1, 5, 12].into_iter().enumerate() {
        let quota = Quota::new(1, Duration::from_secs(1)).burst(burst);
        let limit = Limit::token_bucket("api", quota)?;
        let area = row(86.0 + number as f64 * 164.0, 116.0);
        let panel = Panel::new(area, 0.0..SECONDS as f64, -12.0..13.0);
        let run = run(&limit, &arrivals, SECONDS)?;
        traffic(&mut chart, &panel, &run, 0.5);
        panel.bottom_axis(
            &mut chart,
            ticks.iter().map(|(at, label)| (*at, label.as_str())),
        );
        let name = format!("burst({burst})");
        titled(&mut chart, &area, &name, &run);
    }
    Ok(chart)
}
