//! Draws what `examples/outage.rs` printed: allowed requests a second, by source, with the outages shaded.
//!
//! ```sh
//! cargo run --release --example outage | cargo run --release -p tollgate-benches --bin outage_plot -- FILE.svg
//! ```

use std::env;
use std::error::Error;
use std::io::stdin;

use plotters::prelude::*;
use plotters::style::FontDesc;

const BY_REDIS: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const LOCALLY: RGBColor = RGBColor(0xe0, 0x8a, 0x1e);
const UNLIMITED: RGBColor = RGBColor(0x9b, 0x2d, 0x30);
const OUTAGE: RGBColor = RGBColor(0xec, 0xec, 0xec);

/// A line of the example.
struct Second {
    is_up: bool,
    by_redis: f64,
    locally: f64,
    unlimited: f64,
}

/// `second  Redis  by Redis  locally  unlimited ...`
fn parse(line: &str) -> Option<Second> {
    let mut words = line.split_whitespace();
    words.next()?.parse::<u32>().ok()?;
    let is_up = words.next()? == "up";
    let mut number = || words.next()?.parse().ok();
    Some(Second { is_up, by_redis: number()?, locally: number()?, unlimited: number()? })
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args().nth(1).ok_or("usage: outage_plot FILE.svg")?;
    let mut seconds = Vec::new();
    for line in stdin().lines() {
        let line = line?;
        println!("{line}");
        seconds.extend(parse(&line));
    }
    let most = seconds.iter().map(|it| it.by_redis + it.locally + it.unlimited).fold(0.0, f64::max);
    let area = SVGBackend::new(&file, (760, 320)).into_drawing_area();
    area.fill(&WHITE)?;
    let font: FontDesc<'_> = ("sans-serif", 13).into();
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..seconds.len() as f64, 0.0..most * 1.15)?;
    let bar = |second: usize, from: f64, to: f64, color: RGBColor| {
        Rectangle::new([(second as f64, from), (second as f64 + 1.0, to)], color.filled())
    };
    let shaded = seconds.iter().enumerate().filter(|(_, it)| !it.is_up);
    chart.draw_series(shaded.map(|(second, _)| bar(second, 0.0, most * 1.15, OUTAGE)))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|second| format!("{second:.0}"))
        .y_label_formatter(&|allowed| format!("{allowed:.0}"))
        .x_desc("seconds (shaded: Redis hangs, then is gone)")
        .y_desc("allowed a second")
        .label_style(font.clone())
        .axis_desc_style(font.clone())
        .draw()?;
    type Count = fn(&Second) -> f64;
    let counts: [(&str, RGBColor, Count); 3] = [
        ("by Redis", BY_REDIS, |it| it.by_redis),
        ("locally", LOCALLY, |it| it.locally),
        ("unlimited", UNLIMITED, |it| it.unlimited),
    ];
    let mut below = vec![0.0; seconds.len()];
    for (name, color, count) in counts {
        if seconds.iter().all(|it| count(it) == 0.0) {
            continue;
        }
        let bars = seconds.iter().enumerate().map(|(second, it)| {
            let from = below[second];
            below[second] += count(it);
            bar(second, from, below[second], color)
        });
        let bars: Vec<_> = bars.collect();
        chart
            .draw_series(bars)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .label_font(font)
        .draw()?;
    area.present()?;
    Ok(())
}
