//! A picture: shapes and texts, and a description for readers who do not see them.

use std::fmt;

use svg::Document;
use svg::Node;
use svg::node::element::path::Data;
use svg::node::element::{Circle, Line, Path, Rectangle, Style, Text, Title};

use crate::ink::{Ink, style_sheet};

/// Where a text is, as seen from its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// It starts there.
    Start,
    /// Its middle is there.
    Middle,
    /// It ends there.
    End,
}

/// A picture, in pixels from its upper left corner. It scales with the page.
#[derive(Clone, Debug)]
pub struct Chart {
    document: Document,
}

impl Chart {
    /// Creates an empty picture. The description says what is to be seen in it, for screen readers.
    pub fn new(width: u32, height: u32, description: &str) -> Self {
        let paper = Rectangle::new()
            .set("class", Ink::Paper.fill())
            .set("width", width)
            .set("height", height)
            .set("rx", 6);
        let document = Document::new()
            .set("class", "tollgate-chart")
            .set("viewBox", (0, 0, width, height))
            .set("width", width)
            .set("height", height)
            .set("role", "img")
            .set("aria-label", description)
            .add(Title::new(description))
            .add(Style::new(style_sheet()))
            .add(paper);
        Self { document }
    }

    /// Adds a text. `y` is its base line.
    pub fn text(&mut self, ink: Ink, align: Align, (x, y): (f64, f64), text: &str) {
        self.add(written(ink.fill(), align, (x, y), text));
    }

    /// Adds a text in bold.
    pub fn heading(&mut self, align: Align, (x, y): (f64, f64), text: &str) {
        self.add(written(
            format!("bold {}", Ink::Text.fill()),
            align,
            (x, y),
            text,
        ));
    }

    /// Adds a filled rectangle, from a corner to the opposite one. An empty one is left out.
    pub fn rectangle(&mut self, ink: Ink, from: (f64, f64), to: (f64, f64)) {
        let (x, y) = (rounded(from.0.min(to.0)), rounded(from.1.min(to.1)));
        let (right, bottom) = (rounded(from.0.max(to.0)), rounded(from.1.max(to.1)));
        let (width, height) = (rounded(right - x), rounded(bottom - y));
        if width <= 0.0 || height <= 0.0 {
            return;
        }
        let rectangle = Rectangle::new()
            .set("class", ink.fill())
            .set("x", x)
            .set("y", y);
        self.add(rectangle.set("width", width).set("height", height));
    }

    /// Adds a straight line.
    pub fn line(&mut self, ink: Ink, from: (f64, f64), to: (f64, f64)) {
        self.add(straight(ink, from, to));
    }

    /// Adds a straight dashed line.
    pub fn dashes(&mut self, ink: Ink, from: (f64, f64), to: (f64, f64)) {
        self.add(straight(ink, from, to).set("stroke-dasharray", "5 4"));
    }

    /// Adds a line through several points.
    pub fn path(&mut self, ink: Ink, points: impl IntoIterator<Item = (f64, f64)>) {
        let data = through(points);
        self.add(
            Path::new()
                .set("class", ink.stroke())
                .set("d", data)
                .set("stroke-width", 2),
        );
    }

    /// Fills the area that several points enclose.
    pub fn polygon(&mut self, ink: Ink, points: impl IntoIterator<Item = (f64, f64)>) {
        self.add(
            Path::new()
                .set("class", ink.fill())
                .set("d", through(points).close()),
        );
    }

    /// Adds a filled circle.
    pub fn dot(&mut self, ink: Ink, (x, y): (f64, f64), radius: f64) {
        let circle = Circle::new()
            .set("class", ink.fill())
            .set("r", rounded(radius));
        self.add(circle.set("cx", rounded(x)).set("cy", rounded(y)));
    }

    /// Adds a cross.
    pub fn cross(&mut self, ink: Ink, (x, y): (f64, f64), radius: f64) {
        let data = [(-radius, -radius), (-radius, radius)].into_iter().fold(
            Data::new(),
            |data, (dx, dy)| {
                let data = data.move_to((rounded(x + dx), rounded(y + dy)));
                data.line_to((rounded(x - dx), rounded(y - dy)))
            },
        );
        self.add(
            Path::new()
                .set("class", ink.stroke())
                .set("d", data)
                .set("stroke-width", 1.5),
        );
    }

    /// Adds the meaning of colours, side by side, from a position to the right.
    pub fn legend<'a>(
        &mut self,
        (x, y): (f64, f64),
        entries: impl IntoIterator<Item = (Ink, &'a str)>,
    ) {
        let mut left = x;
        for (ink, text) in entries {
            self.rectangle(ink, (left, y - 10.0), (left + 12.0, y + 1.0));
            self.text(Ink::Text, Align::Start, (left + 17.0, y), text);
            // About the width of a letter.
            left += 40.0 + 7.0 * text.chars().count() as f64;
        }
    }

    fn add(&mut self, element: impl Into<Box<dyn svg::node::Node>>) {
        self.document.append(element);
    }
}

/// The picture as SVG. It has no empty line, which would end it inside Markdown.
impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.document.fmt(f)
    }
}

/// Tenths of a pixel keep files small, and the same on every machine.
fn rounded(pixels: f64) -> f64 {
    // Adding zero turns -0 into 0.
    (pixels * 10.0).round() / 10.0 + 0.0
}

fn straight(ink: Ink, from: (f64, f64), to: (f64, f64)) -> Line {
    let line = Line::new().set("class", ink.stroke());
    let line = line.set("x1", rounded(from.0)).set("y1", rounded(from.1));
    line.set("x2", rounded(to.0)).set("y2", rounded(to.1))
}

fn through(points: impl IntoIterator<Item = (f64, f64)>) -> Data {
    let mut points = points.into_iter().map(|(x, y)| (rounded(x), rounded(y)));
    let start = points
        .next()
        .map_or_else(Data::new, |start| Data::new().move_to(start));
    points.fold(start, Data::line_to)
}

fn written(class: String, align: Align, (x, y): (f64, f64), text: &str) -> Text {
    let anchor = match align {
        Align::Start => "start",
        Align::Middle => "middle",
        Align::End => "end",
    };
    let text = Text::new(text)
        .set("class", class)
        .set("text-anchor", anchor);
    text.set("x", rounded(x)).set("y", rounded(y))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_description_are_escaped() {
        let mut chart = Chart::new(10, 10, "5 < 6 & \"7\"");
        chart.text(
            Ink::Text,
            Align::Start,
            (0.0, 0.0),
            "<script>alert(1)</script>",
        );
        let svg = chart.to_string();
        assert!(!svg.contains("<script>"), "{svg}");
        assert!(svg.contains("&lt;script&gt;"), "{svg}");
        assert!(
            svg.contains("aria-label=\"5 &lt; 6 &amp; &quot;7&quot;\""),
            "{svg}"
        );
    }

    #[test]
    fn chart_has_no_empty_line() {
        let mut chart = Chart::new(10, 10, "Nothing.");
        chart.path(Ink::Level, [(0.0, 0.0), (1.0, 1.0)]);
        assert!(
            chart
                .to_string()
                .lines()
                .all(|line| !line.trim().is_empty())
        );
    }

    #[test]
    fn empty_rectangles_are_left_out_and_numbers_are_short() {
        let mut chart = Chart::new(10, 10, "Bars.");
        let empty = chart.to_string();
        chart.rectangle(Ink::Allowed, (1.0, 5.0), (2.0, 5.0));
        assert_eq!(chart.to_string(), empty);
        chart.rectangle(Ink::Allowed, (2.0 / 3.0, -0.01), (2.0, 5.0));
        let svg = chart.to_string();
        assert!(
            svg.contains(r#"height="5" width="1.3" x="0.7" y="0""#),
            "{svg}"
        );
    }
}
