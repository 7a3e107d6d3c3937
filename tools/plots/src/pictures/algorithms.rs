//! The same requests under each algorithm.

use std::error::Error;
use std::time::Duration;

use tollgate::{Limit, Quota};
use tollgate_charts::{Align, Area, Chart, Ink, Panel};

use super::{TRAFFIC, WIDTH, seconds, traffic};
use crate::requests::{steady, together};
use crate::run::run;

const SECONDS: u64 = 30;
const PANEL: (f64, f64) = (372.0, 120.0);

pub(crate) fn draw() -> Result<Chart, Box<dyn Error>> {
    let quota = Quota::new(10, Duration::from_secs(10));
    let limits = [
        ("Token bucket", Limit::token_bucket("api", quota)?),
        ("GCRA", Limit::gcra("api", quota)?),
        ("Leaky bucket", Limit::leaky_bucket("api", quota)?),
        ("Sliding window", Limit::sliding_window("api", quota)?),
        ("Sliding log", Limit::sliding_log("api", quota)?),
        ("Fixed window", Limit::fixed_window("api", quota)?),
    ];
    let arrivals = together([
        steady(1_000, 30, 16).collect(),
        steady(4_250, 1_250, 5).collect(),
        steady(12_000, 30, 16).collect(),
        steady(16_250, 400, 30).collect(),
    ]);
    let mut chart = Chart::new(
        WIDTH,
        600,
        "The same requests under six algorithms, each with 10 requests in 10 seconds: a burst of \
         16, a few, another burst, and then 2.5 a second.",
    );
    let requests = arrivals.len();
    let title = format!("{requests} requests under a limit of 10 in 10 seconds");
    chart.heading(Align::Start, (28.0, 30.0), &title);
    chart.legend((WIDTH as f64 - 400.0, 30.0), TRAFFIC);
    let ticks = seconds([0, 10, 20, 30]);
    for (number, (name, limit)) in limits.iter().enumerate() {
        let (column, row) = ((number % 2) as f64, (number / 2) as f64);
        let (left, top) = (28.0 + column * 432.0, 84.0 + row * 184.0);
        let area = Area {
            left,
            top,
            width: PANEL.0,
            height: PANEL.1,
        };
        let panel = Panel::new(area, 0.0..SECONDS as f64, -14.0..11.0);
        let run = run(limit, &arrivals, SECONDS)?;
        traffic(&mut chart, &panel, &run, 0.5);
        panel.bottom_axis(
            &mut chart,
            ticks.iter().map(|(at, label)| (*at, label.as_str())),
        );
        chart.heading(Align::Start, (left, top - 10.0), name);
        chart.text(
            Ink::Text,
            Align::End,
            (left + PANEL.0, top - 10.0),
            &run.summary(),
        );
    }
    Ok(chart)
}
