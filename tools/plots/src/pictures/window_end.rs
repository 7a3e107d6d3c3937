//! A window's worth of requests on each side of a window's end.

use std::error::Error;
use std::time::Duration;

use tollgate::{Limit, Quota};
use tollgate_charts::{Align, Chart, Ink, Panel};

use super::{TRAFFIC, WIDTH, row, seconds, traffic};
use crate::requests::{steady, together};
use crate::run::run;

const SECONDS: u64 = 20;

pub(crate) fn draw() -> Result<Chart, Box<dyn Error>> {
    let quota = Quota::new(10, Duration::from_secs(10));
    let limits = [
        ("Fixed window", Limit::fixed_window("api", quota)?),
        ("Sliding window", Limit::sliding_window("api", quota)?),
    ];
    // The first request of the key begins its first window.
    let arrivals = together([
        vec![0],
        steady(9_000, 110, 9).collect(),
        steady(10_000, 100, 10).collect(),
    ]);
    let mut chart = Chart::new(
        WIDTH,
        430,
        "Nine requests before the end of a fixed window and ten after it are all allowed: 19 in \
         two seconds, under a limit of 10 in 10 seconds. A sliding window with the same quota \
         denies the second ten.",
    );
    chart.heading(
        Align::Start,
        (48.0, 30.0),
        "Around the end of a window: 10 in 10 seconds",
    );
    chart.legend((WIDTH as f64 - 400.0, 30.0), TRAFFIC);
    let ticks = seconds([0, 5, 10, 15, 20]);
    for (number, (name, limit)) in limits.iter().enumerate() {
        let area = row(86.0 + number as f64 * 180.0, 120.0);
        let panel = Panel::new(area, 0.0..SECONDS as f64, -5.5..10.5);
        let run = run(limit, &arrivals, SECONDS)?;
        traffic(&mut chart, &panel, &run, 0.5);
        panel.bottom_axis(
            &mut chart,
            ticks.iter().map(|(at, label)| (*at, label.as_str())),
        );
        let near = |it: &&f64| (9.0..11.0).contains(*it);
        let most = run.forwarded().iter().filter(near).count();
        let result = format!("{most} allowed in these two seconds");
        chart.heading(Align::Start, (area.left, area.top - 10.0), name);
        let (left, top) = panel.at(9.0, 10.5);
        let (right, _) = panel.at(11.0, 10.5);
        chart.path(
            Ink::Text,
            [
                (left, top + 5.0),
                (left, top),
                (right, top),
                (right, top + 5.0),
            ],
        );
        chart.text(Ink::Text, Align::Start, (right + 8.0, top + 4.0), &result);
    }
    Ok(chart)
}
