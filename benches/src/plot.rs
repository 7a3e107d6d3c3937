//! The decisions a second of every contender in every scenario, as bars.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::contenders::Side;
use crate::report::median_of;
use crate::sample::Sample;
use crate::scenario::Outcome;

const WIDTH: i32 = 1000;
const NAMES: i32 = 250;
const BAR: i32 = 18;
const TITLE: i32 = 44;
const NUMBERS: i32 = 110;

const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const THEIRS: RGBColor = RGBColor(0xb8, 0xbe, 0xc6);

pub fn draw(path: &Path, measured: &[(&str, Vec<Outcome>)]) -> Result<(), Box<dyn Error>> {
    let rows: usize = measured.iter().map(|(_, outcomes)| outcomes.len()).sum();
    let height = rows as i32 * BAR + measured.len() as i32 * TITLE + 20;
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let text = ("sans-serif", 12).into_font().color(&BLACK);
    let title_style = ("sans-serif", 15).into_font().color(&BLACK);
    let (left, right) = (
        text.pos(Pos::new(HPos::Left, VPos::Center)),
        text.pos(Pos::new(HPos::Right, VPos::Center)),
    );
    let mut y = 0;
    for (title, outcomes) in measured {
        y += TITLE;
        area.draw_text(&format!("{title}: decisions a second"), &title_style, (NAMES, y - 24))?;
        let rates: Vec<_> =
            outcomes.iter().map(|it| median_of(&it.samples, Sample::rate)).collect();
        let most = rates.iter().copied().fold(1.0, f64::max);
        for (outcome, rate) in outcomes.iter().zip(rates) {
            let end = NAMES + (rate / most * f64::from(WIDTH - NAMES - NUMBERS)) as i32;
            let color = if outcome.side == Side::Tollgate { OURS } else { THEIRS };
            let bar = [(NAMES, y + 2), (end, y + BAR - 2)];
            area.draw(&Rectangle::new(bar, color.filled()))?;
            area.draw_text(&outcome.name, &right, (NAMES - 8, y + BAR / 2))?;
            area.draw_text(&format!("{rate:.0}"), &left, (end + 6, y + BAR / 2))?;
            y += BAR;
        }
    }
    area.present()?;
    Ok(())
}
