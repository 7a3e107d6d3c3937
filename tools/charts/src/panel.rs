//! A part of a picture with two axes.

use std::ops::Range;

use crate::chart::{Align, Chart};
use crate::ink::Ink;

/// A rectangle of a chart, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// From the chart's left edge.
    pub left: f64,
    /// From the chart's upper edge.
    pub top: f64,
    /// Its width.
    pub width: f64,
    /// Its height.
    pub height: f64,
}

/// An area in which positions are values of two axes.
#[derive(Clone, Debug)]
pub struct Panel {
    area: Area,
    x: Range<f64>,
    y: Range<f64>,
}

impl Panel {
    /// Creates a panel. `x` are the values from left to right, `y` those from bottom to top.
    /// Neither is empty.
    pub fn new(area: Area, x: Range<f64>, y: Range<f64>) -> Self {
        Self { area, x, y }
    }

    /// The position of a value, in pixels.
    pub fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let share = |value: f64, axis: &Range<f64>| (value - axis.start) / (axis.end - axis.start);
        let left = self.area.left + share(x, &self.x) * self.area.width;
        (
            left,
            self.area.top + (1.0 - share(y, &self.y)) * self.area.height,
        )
    }

    /// Draws a bar, with a hairline of space to its right. A bar that starts beyond the right end
    /// is left out.
    pub fn bar(&self, chart: &mut Chart, ink: Ink, x: Range<f64>, y: Range<f64>) {
        if x.start >= self.x.end {
            return;
        }
        let (from, to) = (self.at(x.start, y.start), self.at(x.end, y.end));
        chart.rectangle(ink, from, ((to.0 - 1.0).max(from.0 + 1.0), to.1));
    }

    /// Shades the panel's whole height.
    pub fn shade(&self, chart: &mut Chart, ink: Ink, x: Range<f64>) {
        chart.rectangle(
            ink,
            self.at(x.start, self.y.start),
            self.at(x.end, self.y.end),
        );
    }

    /// Draws a line that keeps each value until the next one.
    pub fn steps(&self, chart: &mut Chart, ink: Ink, values: &[(f64, f64)]) {
        chart.path(ink, self.stairs(values));
    }

    /// Fills the area between such a line and 0.
    pub fn filled_steps(&self, chart: &mut Chart, ink: Ink, values: &[(f64, f64)]) {
        let end = [(self.x.end, 0.0), (self.x.start, 0.0)].map(|(x, y)| self.at(x, y));
        chart.polygon(ink, self.stairs(values).into_iter().chain(end));
    }

    /// Draws a dashed line across the panel, with its meaning at its right end.
    pub fn threshold(&self, chart: &mut Chart, ink: Ink, y: f64, meaning: &str) {
        let (from, to) = (self.at(self.x.start, y), self.at(self.x.end, y));
        chart.dashes(ink, from, to);
        chart.text(Ink::Text, Align::End, (to.0, to.1 - 4.0), meaning);
    }

    /// Draws the line of `y = 0`, and below the panel a tick with its label for each value.
    pub fn bottom_axis<'a>(
        &self,
        chart: &mut Chart,
        ticks: impl IntoIterator<Item = (f64, &'a str)>,
    ) {
        self.zero_line(chart);
        let bottom = self.area.top + self.area.height;
        for (value, label) in ticks {
            let (x, _) = self.at(value, 0.0);
            chart.line(Ink::Text, (x, bottom), (x, bottom + 4.0));
            chart.text(Ink::Text, Align::Middle, (x, bottom + 17.0), label);
        }
    }

    /// Draws the line of `y = 0`.
    pub fn zero_line(&self, chart: &mut Chart) {
        chart.line(
            Ink::Text,
            self.at(self.x.start, 0.0),
            self.at(self.x.end, 0.0),
        );
    }

    /// Writes values to the left of the panel.
    pub fn left_axis<'a>(
        &self,
        chart: &mut Chart,
        ticks: impl IntoIterator<Item = (f64, &'a str)>,
    ) {
        for (value, label) in ticks {
            let (x, y) = self.at(self.x.start, value);
            chart.text(Ink::Text, Align::End, (x - 6.0, y + 4.0), label);
        }
    }

    fn stairs(&self, values: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let ends = values.iter().skip(1).map(|(x, _)| *x).chain([self.x.end]);
        let mut points = Vec::new();
        for ((x, y), end) in values.iter().zip(ends) {
            for point in [self.at(*x, *y), self.at(end, *y)] {
                // A line has no second point where it does not turn.
                if let [.., (_, before), (_, last)] = points[..]
                    && before == last
                    && last == point.1
                {
                    points.pop();
                }
                points.push(point);
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel() -> Panel {
        let area = Area {
            left: 10.0,
            top: 20.0,
            width: 100.0,
            height: 50.0,
        };
        Panel::new(area, 0.0..10.0, 0.0..5.0)
    }

    #[test]
    fn values_are_placed_from_left_to_right_and_from_bottom_to_top() {
        assert_eq!(panel().at(0.0, 0.0), (10.0, 70.0));
        assert_eq!(panel().at(10.0, 5.0), (110.0, 20.0));
        assert_eq!(panel().at(5.0, 1.0), (60.0, 60.0));
    }

    #[test]
    fn steps_keep_a_value_until_the_next_one_and_to_the_end() {
        let stairs = panel().stairs(&[(0.0, 1.0), (2.0, 1.0), (4.0, 3.0)]);
        assert_eq!(
            stairs,
            [(10.0, 60.0), (50.0, 60.0), (50.0, 40.0), (110.0, 40.0)]
        );
    }
}
