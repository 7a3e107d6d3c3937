//! Bursts that arrive, and leave a leaky bucket evenly.

use std::error::Error;
use std::time::Duration;

use tollgate::{Limit, Quota};
use tollgate_charts::{Align, Chart, Ink, Panel};

use super::{WIDTH, row, seconds};
use crate::requests::{steady, together};
use crate::run::run;

const SECONDS: u64 = 20;

pub(crate) fn draw() -> Result<Chart, Box<dyn Error>> {
    let quota = Quota::new(1, Duration::from_secs(1)).burst(6);
    let limit = Limit::leaky_bucket("outgoing", quota)?;
    let arrivals = together([
        steady(1_000, 100, 9).collect(),
        steady(9_300, 1_700, 2).collect(),
        steady(12_000, 60, 5).collect(),
    ]);
    let run = run(&limit, &arrivals, SECONDS)?;
    let mut chart = Chart::new(
        WIDTH,
        250,
        "Requests arrive in bursts. A leaky bucket with one request a second forwards them one \
         second apart, and denies those that find its queue full.",
    );
    let title = "A leaky bucket: one request a second, and a queue of 6";
    chart.heading(Align::Start, (48.0, 30.0), title);
    let meaning = [
        (Ink::Allowed, "forwarded, after its delay"),
        (Ink::Denied, "denied: the queue is full"),
    ];
    chart.legend((48.0, 54.0), meaning);
    let area = row(84.0, 120.0);
    let panel = Panel::new(area, 0.0..SECONDS as f64, 0.0..1.0);
    let (arrive, leave) = (0.9, 0.15);
    for request in &run.requests {
        let from = panel.at(request.arrived, arrive);
        match request.forwarded {
            Some(forwarded) => {
                let to = panel.at(forwarded, leave);
                chart.line(Ink::Faint, from, to);
                chart.dot(Ink::Allowed, from, 3.0);
                chart.dot(Ink::Allowed, to, 4.0);
            }
            None => chart.cross(Ink::Denied, from, 4.0),
        }
    }
    panel.left_axis(&mut chart, [(arrive, "arrive"), (leave, "leave")]);
    let ticks = seconds([0, 5, 10, 15, 20]);
    panel.bottom_axis(
        &mut chart,
        ticks.iter().map(|(at, label)| (*at, label.as_str())),
    );
    Ok(chart)
}
