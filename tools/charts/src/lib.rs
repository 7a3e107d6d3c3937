//! Charts as SVG, for tollgate's documentation, benchmarks and reports.
//!
//! A [`Chart`] is one picture. It follows the reader's light or dark theme, as a file of its own
//! and inside a page of rustdoc. A [`Panel`] is a part of it with two axes.
//!
//! ```
//! use tollgate_charts::{Area, Chart, Ink, Panel};
//!
//! let mut chart = Chart::new(300, 120, "Two requests a second.");
//! let area = Area { left: 40.0, top: 10.0, width: 250.0, height: 80.0 };
//! let panel = Panel::new(area, 0.0..4.0, 0.0..3.0);
//! panel.bottom_axis(&mut chart, [(0.0, "0 s"), (4.0, "4 s")]);
//! panel.bar(&mut chart, Ink::Allowed, 0.0..1.0, 0.0..2.0);
//! assert!(chart.to_string().starts_with("<svg"));
//! ```

mod chart;
mod ink;
mod panel;

pub use self::chart::{Align, Chart};
pub use self::ink::Ink;
pub use self::panel::{Area, Panel};
