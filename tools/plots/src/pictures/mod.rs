//! One module a picture, and what several of them have in common.

pub(crate) mod algorithms;
pub(crate) mod burst;
pub(crate) mod calendar;
pub(crate) mod even_output;
pub(crate) mod outage;
pub(crate) mod window_end;
pub(crate) mod window_or_log;

use tollgate_charts::{Align, Area, Chart, Ink, Panel};

use crate::run::Run;

/// The width of all pictures, in pixels.
const WIDTH: u32 = 860;

/// The meaning of the colours of [`traffic`].
const TRAFFIC: [(Ink, &str); 3] = [
    (Ink::Allowed, "requests allowed"),
    (Ink::Denied, "requests denied"),
    (Ink::Level, "units left"),
];

/// How many of these times are in each bar of `width` seconds.
fn per_bar(times: &[f64], width: f64) -> Vec<(f64, f64)> {
    let mut bars: Vec<(f64, f64)> = Vec::new();
    for time in times {
        // A request at a bar's very start counts for that bar, whatever the rounding of the
        // division.
        let start = (time / width + 1e-6).floor() * width;
        match bars.iter_mut().find(|(from, _)| *from == start) {
            Some((_, count)) => *count += 1.0,
            None => bars.push((start, 1.0)),
        }
    }
    bars
}

/// Draws the units that are left, the requests that were forwarded upwards, and those that were
/// denied downwards.
fn traffic(chart: &mut Chart, panel: &Panel, run: &Run, bar: f64) {
    panel.filled_steps(chart, Ink::Level, &run.remaining);
    for (from, count) in per_bar(&run.forwarded(), bar) {
        panel.bar(chart, Ink::Allowed, from..from + bar, 0.0..count);
    }
    for (from, count) in per_bar(&run.denied(), bar) {
        panel.bar(chart, Ink::Denied, from..from + bar, -count..0.0);
    }
}

/// Writes the name of a panel above it, and how many requests were allowed.
fn titled(chart: &mut Chart, area: &Area, name: &str, run: &Run) {
    let y = area.top - 10.0;
    chart.heading(Align::Start, (area.left, y), name);
    let right = area.left + area.width;
    chart.text(Ink::Text, Align::End, (right, y), &run.summary());
}

/// An area of a picture's whole width, with space for an axis on its left.
fn row(top: f64, height: f64) -> Area {
    Area {
        left: 48.0,
        top,
        width: f64::from(WIDTH) - 68.0,
        height,
    }
}

/// Seconds as labels of an axis.
fn seconds<const N: usize>(ticks: [u32; N]) -> [(f64, String); N] {
    ticks.map(|tick| (f64::from(tick), format!("{tick} s")))
}
