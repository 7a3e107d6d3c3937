//! A dry run of limits: reads checks from stdin, one JSON object a line, and prints the decision
//! for each, in virtual time.
//!
//! ```sh
//! cargo run -p tollgate-replay -- \
//!   --limit '{"name":"api","algorithm":"gcra","quota":"5/s"}' <<'EOF'
//! {"at_us":0,"op":"charge","key":"k","cost":1}
//! {"at_us":200000,"op":"peek","key":"k","cost":5}
//! EOF
//! ```
//!
//! `--help` describes the options and the lines. Other implementations are compared with these
//! lines: their field names stay, even if the library renames what they show.

mod answer;
mod limit;
mod options;
mod replay;
mod request;
mod summary;

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use self::answer::Answer;
use self::options::{HELP, Options};
use self::replay::Replay;
use self::request::{Op, Request};
use self::summary::Summary;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let Some(options) = Options::parse(std::env::args().skip(1))? else {
        print!("{HELP}");
        return Ok(());
    };
    let mut replay = Replay::start(options.limits, &options.store).await?;
    let mut summary = options.summary.then(Summary::default);
    // Stdout writes each line at once, so that another program can write and read in turns.
    let mut output = io::stdout().lock();
    for (index, line) in io::stdin().lock().lines().enumerate() {
        let line = line.map_err(|error| in_line(index + 1, error.into()))?;
        if line.trim().is_empty() {
            continue;
        }
        answer(&line, &mut replay, summary.as_mut(), &mut output)
            .await
            .map_err(|error| in_line(index + 1, error))?;
    }
    if let Some(summary) = summary {
        serde_json::to_writer_pretty(&mut output, &summary.finish())?;
        writeln!(output)?;
    }
    output.flush()?;
    Ok(())
}

/// Decides one line. Counts it if there is a summary, and prints the decision if there is none.
async fn answer(
    line: &str,
    replay: &mut Replay,
    summary: Option<&mut Summary>,
    output: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let request = Request::parse(line)?;
    let decision = replay.decide(&request).await?;
    match summary {
        Some(summary) if request.op == Op::Charge => {
            summary.count(&request, decision.allowed(), decision.delay());
        }
        Some(_) => {}
        None => {
            serde_json::to_writer(&mut *output, &Answer::new(replay.limits(), &decision))?;
            writeln!(output)?;
        }
    }
    Ok(())
}

fn in_line(number: usize, error: Box<dyn Error>) -> Box<dyn Error> {
    if is_broken_pipe(&*error) {
        error
    } else {
        format!("line {number}: {error}").into()
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let json = error
        .downcast_ref::<serde_json::Error>()
        .and_then(serde_json::Error::io_error_kind);
    io.or(json) == Some(io::ErrorKind::BrokenPipe)
}
