//! Draws the picture of the guide about token buckets with an overshoot.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use tollgate_charts::{Align, Area, Chart, Ink, Panel};

use crate::{Algorithm, CAPACITY, Fleet, OVERSHOOT_PERCENT, PERIOD, levels, times_of_keys};

const WIDTH: u32 = 720;

const AREA: Area = Area {
    left: 96.0,
    top: 84.0,
    width: 600.0,
    height: 180.0,
};

const SECONDS: u64 = 40;

const KILLED_AT: u64 = 20;

const STARTED_AT: u64 = 25;

/// The values that are drawn for a second. Each is the highest of its time.
const VALUES: f64 = 10.0;

/// Runs four replicas with four times the limit, of which one is killed and replaced, and draws
/// how far a bucket of all allowed requests is above its capacity.
pub(crate) fn draw() -> std::io::Result<()> {
    let rate = CAPACITY as f64 / PERIOD.as_secs_f64();
    let (mut fleet, allowed) = Fleet::new(Algorithm::TokenBucket, 4.0 * rate, 4);
    (0..4).for_each(|_| fleet.start_replica());
    sleep(Duration::from_secs(KILLED_AT));
    fleet.kill_replica(0);
    sleep(Duration::from_secs(STARTED_AT - KILLED_AT));
    fleet.start_replica();
    sleep(Duration::from_secs(SECONDS - STARTED_AT));
    drop(fleet.stop());
    let times = times_of_keys(&allowed).remove(&0).unwrap_or_default();

    let mut highest = vec![f64::NEG_INFINITY; (SECONDS as f64 * VALUES) as usize];
    for (time, level) in times.iter().zip(levels(&times)) {
        let place = ((*time - times[0]).as_secs_f64() * VALUES) as usize;
        if let Some(highest) = highest.get_mut(place) {
            *highest = highest.max(level - CAPACITY as f64);
        }
    }
    let values = highest.into_iter().enumerate();
    let values = values.map(|(place, above)| (place as f64 / VALUES, above));
    // Before the bucket is nearly used up, there is nothing to see.
    let values: Vec<_> = values.filter(|(_, above)| *above >= LOWEST).collect();
    let picture = chart(&values).to_string();
    let file = "../src/guide/pictures/overshoot.svg";
    std::fs::write(
        Path::new(env!("CARGO_MANIFEST_DIR")).join(file),
        picture + "\n",
    )
}

const LOWEST: f64 = -50.0;

fn chart(values: &[(f64, f64)]) -> Chart {
    let overshoot = (CAPACITY * u64::from(OVERSHOOT_PERCENT) / 100) as f64;
    let description = "Four processes get four times the limit. What passes on all of them stays \
                       between the limit and the limit with the overshoot, also when one of them \
                       is killed and another starts.";
    let mut chart = Chart::new(WIDTH, 310, description);
    let title = "Four processes, a limit of 1,000 in 10 seconds, and four times as many requests";
    chart.heading(Align::Start, (48.0, 30.0), title);
    let meaning = [(Ink::Allowed, "passed above the limit, on all four together")];
    chart.legend((48.0, 54.0), meaning);
    let panel = Panel::new(AREA, 0.0..SECONDS as f64, LOWEST..overshoot + 10.0);
    panel.shade(&mut chart, Ink::Outage, KILLED_AT as f64..STARTED_AT as f64);
    let (x, y) = panel.at(KILLED_AT as f64 + 0.2, LOWEST + 6.0);
    chart.text(Ink::Text, Align::Start, (x, y), "one is killed");
    panel.steps(&mut chart, Ink::Allowed, values);
    panel.threshold(
        &mut chart,
        Ink::Text,
        overshoot,
        "the overshoot of 5 percent",
    );
    panel.left_axis(
        &mut chart,
        [
            (0.0, "the limit"),
            (overshoot, "50 above"),
            (LOWEST, "50 below"),
        ],
    );
    panel.bottom_axis(
        &mut chart,
        [
            (0.0, "0 s"),
            (10.0, "10"),
            (20.0, "20"),
            (30.0, "30"),
            (40.0, "40 s"),
        ],
    );
    chart
}
