//! `tollgate replay`: what a limit would have done to recorded traffic.
//!
//! Lines become requests, requests become checks in virtual time, and checks are counted: a log
//! passes through once, and what is kept is bounded by the number of keys.

mod clients;
mod comparison;
mod format;
mod gzip;
mod html;
mod input;
mod key;
mod order;
mod report;
mod request;
mod suggest;
mod table;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, bail};

pub(crate) use self::key::KeySpec;
pub(crate) use self::suggest::Suggest;

use self::clients::Clients;
use self::comparison::Comparison;
use self::format::Format;
use self::input::Input;
use self::order::Order;
use self::report::{Lines, Report};
use self::suggest::Spool;
use crate::arguments::ReplayArguments;
use crate::output;

/// How many lines are read before the format is recognized.
const SAMPLE: usize = 100;

pub(crate) async fn run(arguments: ReplayArguments) -> anyhow::Result<ExitCode> {
    let mut limits = vec![arguments.limit.clone()];
    for text in &arguments.compare {
        let limit = arguments.limit.varied(text);
        limits.push(limit.with_context(|| format!("--compare `{text}`"))?);
    }
    let mut spool = arguments
        .suggest
        .as_ref()
        .map(|_| Spool::new())
        .transpose()?;
    let mut comparison = Comparison::new(&limits)?;
    let lines = read(&arguments, async |at_us, key, name| {
        if let Some(spool) = &mut spool {
            spool.push(at_us, key)?;
        }
        comparison.check(at_us, key, name).await
    })
    .await?;
    if comparison.requests() == 0 {
        bail!(
            "the log has no request of a key; {}",
            lines.explained(&arguments.key)
        );
    }
    let mut report = Report::new(&arguments.key, lines, comparison, arguments.top);
    if let (Some(suggest), Some(spool)) = (&arguments.suggest, spool) {
        report.suggestion = Some(suggest.search(&arguments.limit, spool, report.keys).await?);
    }
    if let Some(file) = &arguments.html {
        fs::write(file, html::page(&report))
            .with_context(|| format!("cannot write {}", file.display()))?;
        output::note(&format!("wrote {}", file.display()));
    }
    let text = match arguments.json {
        true => output::json(&report, true)?,
        false => table::text(&report),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads all files, and passes on the time, the key and the name of the key of each request, in the
/// order of the times.
async fn read(
    arguments: &ReplayArguments,
    mut take: impl AsyncFnMut(u64, &tollgate::Key, &str) -> anyhow::Result<()>,
) -> anyhow::Result<Lines> {
    if !arguments.trusted.is_empty() && !arguments.key.has_client_ip() {
        bail!(
            "--trusted has no effect on the key {}, which has no client_ip",
            arguments.key
        );
    }
    let mut lines = Lines::default();
    let (mut input, mut line, mut name) =
        (Input::open(&arguments.files)?, Vec::new(), String::new());
    let mut format = Format::recognize(&input.sample(SAMPLE)?, arguments.format)?;
    let mut clients = Clients::new(&arguments.trusted);
    let mut order = Order::default();
    loop {
        line.clear();
        if input
            .read_until(b'\n', &mut line)
            .map_err(|error| input.failed(&error))?
            == 0
        {
            break;
        }
        lines.read += 1;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.is_empty() || text.starts_with('#') {
            lines.empty += 1;
            continue;
        }
        let Some(text) = format.unwrap(text) else {
            lines.skip(text, "it is not wrapped as the lines before");
            continue;
        };
        let mut request = match format.parse(&text) {
            Ok(request) => request,
            Err(why) => {
                lines.skip(&text, &why);
                continue;
            }
        };
        clients.find(&mut request);
        name.clear();
        let Some(key) = arguments.key.key_of(&request, &mut name) else {
            lines.skip_without_key(&request);
            continue;
        };
        order.push(request.at_us, key, &name);
        while let Some(due) = order.due() {
            take(due.at_us, &due.key, &due.name).await?;
        }
    }
    while let Some(due) = order.next() {
        take(due.at_us, &due.key, &due.name).await?;
    }
    input.finish();
    let (far_behind, requests) = (order.far_behind(), order.requests());
    if far_behind * 100 > requests {
        bail!(
            "{far_behind} of {requests} lines are more than ten minutes older than a line before \
             them: give the oldest file first, and remove lines with a wrong time"
        );
    }
    (lines.sorted, lines.late) = (order.sorted(), order.late());
    lines.format = format.name();
    clients.check_trusted(&lines.format)?;
    if arguments.key.has_client_ip() {
        lines.private_clients = clients.private();
    }
    Ok(lines)
}
