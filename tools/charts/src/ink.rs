//! Colours, by what they stand for. Each differs from its neighbours also for readers who do not
//! tell red from green.

use std::fmt::Write;

/// What a shape stands for. It has a colour on light pages and one on dark pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// The page behind everything.
    Paper,
    /// Text and axes.
    Text,
    /// Grid lines and secondary marks.
    Faint,
    /// Allowed requests.
    Allowed,
    /// Denied requests.
    Denied,
    /// Units that are left.
    Level,
    /// Requests that a replica allowed by its local limit.
    Local,
    /// Requests that passed without a limit.
    Unlimited,
    /// A period in which the store is unavailable.
    Outage,
}

/// Each ink with its name in the style sheet, its colour on light pages, and the one on dark pages.
const INKS: [(Ink, &str, &str, &str); 9] = [
    (Ink::Paper, "paper", "#ffffff", "#0d1117"),
    (Ink::Text, "text", "#24292f", "#e6edf3"),
    (Ink::Faint, "faint", "#b8bec6", "#57606a"),
    (Ink::Allowed, "allowed", "#1f6fb4", "#58a6ff"),
    (Ink::Denied, "denied", "#c8502b", "#ff9070"),
    (Ink::Level, "level", "#d6e6f5", "#16365a"),
    (Ink::Local, "local", "#c98a1b", "#e3b341"),
    (Ink::Unlimited, "unlimited", "#8250a8", "#c297ff"),
    (Ink::Outage, "outage", "#ececec", "#21262d"),
];

impl Ink {
    pub(crate) fn fill(self) -> String {
        format!("fill-{}", self.name())
    }

    pub(crate) fn stroke(self) -> String {
        format!("stroke-{}", self.name())
    }

    fn name(self) -> &'static str {
        INKS.iter()
            .find(|(ink, ..)| *ink == self)
            .map_or("text", |(_, name, ..)| name)
    }
}

/// The style sheet of every chart. A reader's theme is that of the system, or inside rustdoc the
/// one that was chosen there.
pub(crate) fn style_sheet() -> String {
    let (mut light, mut dark, mut classes) = (String::new(), String::new(), String::new());
    for (_, name, on_light, on_dark) in INKS {
        // Writing to a string does not fail.
        let _ = write!(light, "--{name}:{on_light};");
        let _ = write!(dark, "--{name}:{on_dark};");
        let _ = write!(
            classes,
            ".tollgate-chart .fill-{name}{{fill:var(--{name})}}\n\
             .tollgate-chart .stroke-{name}{{fill:none;stroke:var(--{name})}}\n"
        );
    }
    format!(
        ".tollgate-chart{{{light}max-width:100%;height:auto;\
         font-family:system-ui,sans-serif;font-size:13px}}\n\
         @media (prefers-color-scheme:dark){{.tollgate-chart{{{dark}}}}}\n\
         [data-theme=light] .tollgate-chart{{{light}}}\n\
         [data-theme=dark] .tollgate-chart,[data-theme=ayu] .tollgate-chart{{{dark}}}\n\
         {classes}.tollgate-chart .bold{{font-weight:600}}\n"
    )
    .trim_end()
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relative luminance of a colour, and the contrast of two: WCAG 2.2.
    fn luminance(color: &str) -> f64 {
        let part = |from: usize| {
            let part = f64::from(u8::from_str_radix(&color[from..from + 2], 16).unwrap()) / 255.0;
            if part <= 0.04045 {
                part / 12.92
            } else {
                ((part + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn inks_that_carry_meaning_stand_out_from_the_paper_of_both_themes() {
        let paper = INKS[0];
        for (ink, name, light, dark) in INKS {
            let least = match ink {
                Ink::Text => 7.0,
                Ink::Allowed | Ink::Denied | Ink::Unlimited => 3.0,
                // Beside its name, and always as large areas.
                Ink::Local => 2.5,
                Ink::Paper | Ink::Faint | Ink::Level | Ink::Outage => continue,
            };
            assert!(contrast(light, paper.2) >= least, "{name} on a light page");
            assert!(contrast(dark, paper.3) >= least, "{name} on a dark page");
        }
    }
}
