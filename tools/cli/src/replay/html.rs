//! The report as a page of its own, with plots.

use std::fmt::Write;

use tollgate_charts::{Align, Area, Chart, Ink, Panel};

use super::report::{OfLimit, Report};
use super::table::{LIMITS, cells, grouped, notes, percent};
use crate::output::{counted, printable, shortened};

const WIDTH: u32 = 860;
/// The most bars of a plot.
const BARS: u64 = 240;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:900px;\
margin:2rem auto;padding:0 1rem;color:#24292f;background:#fff}\
table{border-collapse:collapse;width:100%;margin:1rem 0}\
th,td{padding:.3rem .6rem;border-bottom:1px solid #d0d7de;text-align:right}\
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}\
th,td{border-color:#3d444d}}";

pub(super) fn page(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>tollgate replay</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>What a limit would have done</h1>\n\
         <p>{} of {} ({}), from {} to {}.</p>\n",
        counted(&grouped(report.requests), "request"),
        counted(&grouped(report.keys), "key"),
        escaped(&report.key),
        report.from,
        report.to
    );
    for note in notes(report) {
        let _ = writeln!(page, "<p>{}.</p>", escaped(&note));
    }
    page += &table(&LIMITS, report.limits.iter().map(cells));
    if let Some(found) = &report.suggestion {
        let _ = writeln!(
            page,
            "<p>Suggested: <strong>{}</strong>. It denies {} of the requests and {} of the \
             keys.</p>",
            found.limit,
            percent(found.denied_share),
            percent(found.keys_denied_share)
        );
    }
    for it in &report.limits {
        let _ = writeln!(
            page,
            "<h2>{}</h2>\n{}",
            escaped(&it.limit),
            timeline(report, it)
        );
        if !it.most_denied.is_empty() {
            let rows = it.most_denied.iter().map(|key| {
                let share = super::report::share(key.denied, key.requests);
                [
                    shortened(&key.key),
                    grouped(key.requests),
                    grouped(key.denied),
                    percent(share),
                ]
            });
            page += &table(&["most denied", "requests", "denied", "share"], rows);
        }
    }
    page + "</body>\n</html>\n"
}

/// Allowed requests upwards, denied ones downwards.
fn timeline(report: &Report, it: &OfLimit) -> Chart {
    let first = report.minutes.first().map_or(0, |(minute, _)| *minute);
    let last = report.minutes.last().map_or(first, |(minute, _)| *minute);
    // Of each bar.
    let minutes = (last - first) / BARS + 1;
    let bars = ((last - first) / minutes + 1) as usize;
    let (mut allowed, mut denied) = (vec![0; bars], vec![0; bars]);
    for ((minute, requests), (_, of_limit)) in report.minutes.iter().zip(&it.minutes) {
        let bar = ((minute - first) / minutes) as usize;
        allowed[bar] += requests - of_limit;
        denied[bar] += of_limit;
    }
    let most = |counts: &[u64]| counts.iter().copied().max().unwrap_or(0);
    let (up, down) = (most(&allowed).max(1) as f64, most(&denied) as f64);
    let description = format!(
        "Requests under {}: {} allowed, {} denied.",
        it.limit,
        grouped(it.allowed),
        grouped(it.denied)
    );
    let mut chart = Chart::new(WIDTH, 260, &description);
    let length = if minutes == 1 {
        "a minute".to_owned()
    } else {
        format!("{minutes} minutes")
    };
    chart.legend(
        (70.0, 24.0),
        [(Ink::Allowed, "allowed"), (Ink::Denied, "denied")],
    );
    let right = f64::from(WIDTH) - 20.0;
    chart.text(
        Ink::Text,
        Align::End,
        (right, 24.0),
        &format!("each bar: {length}"),
    );
    let area = Area {
        left: 70.0,
        top: 44.0,
        width: right - 70.0,
        height: 176.0,
    };
    let panel = Panel::new(area, 0.0..bars as f64, -down * 1.05..up * 1.05);
    for (number, (allowed, denied)) in allowed.iter().zip(&denied).enumerate() {
        let x = number as f64..number as f64 + 1.0;
        panel.bar(&mut chart, Ink::Allowed, x.clone(), 0.0..*allowed as f64);
        panel.bar(&mut chart, Ink::Denied, x, -(*denied as f64)..0.0);
    }
    let (top, bottom) = (grouped(up as u64), grouped(down as u64));
    panel.left_axis(&mut chart, [(0.0, "0"), (up, top.as_str())]);
    if down > 0.0 {
        panel.left_axis(&mut chart, [(-down, bottom.as_str())]);
    }
    panel.bottom_axis(&mut chart, []);
    let line = area.top + area.height + 20.0;
    chart.text(Ink::Text, Align::Start, (area.left, line), &report.from);
    chart.text(Ink::Text, Align::End, (right, line), &report.to);
    chart
}

fn table<const N: usize>(heads: &[&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let row = |cells: &[String], tag: &str| {
        let cells: String = cells
            .iter()
            .map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)))
            .collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = row(&heads.map(str::to_owned), "th");
    let rows: String = rows.map(|cells| row(&cells, "td")).collect();
    format!("<table>\n{head}{rows}</table>\n")
}

/// Keys come from clients.
fn escaped(text: &str) -> String {
    printable(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
