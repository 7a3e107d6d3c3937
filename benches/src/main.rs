//! tollgate and its peers, side by side: on one machine and one Redis, in turn and in several
//! rounds.
//!
//! Without an argument, everything is measured, and `benches/RESULTS.md` and its pictures
//! are written. With arguments, only those scenarios are measured whose titles contain one of them,
//! and the results are printed. `--short` measures one round.

mod child;
mod contenders;
mod cpu;
mod http;
mod in_script;
mod load;
mod machine;
mod memory;
mod plot;
mod progress;
mod redis_server;
mod replicas;
mod report;
mod sample;
mod scenario;
mod users;

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use child::{Job, Role};
use progress::Progress;
use redis_server::Server;
use scenario::{Length, Scenario};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<_> = env::args().skip(1).collect();
    if let [role, job] = &arguments[..]
        && role == child::CHILD
    {
        return take_part(serde_json::from_str(job)?).await;
    }
    let all = arguments.len();
    arguments.retain(|it| it != "--short");
    let length = if arguments.len() < all {
        Length::Short
    } else {
        Length::Full
    };
    measure(&arguments, length).await
}

/// The side of a child process.
async fn take_part(job: Job) -> Result<(), Box<dyn Error>> {
    let contender = scenario::contender(&job.contender)
        .ok_or_else(|| format!("there is no contender `{}`", job.contender))?;
    match job.role {
        Role::Server => http::serve(&contender, job).await?,
        Role::Replica(load) => replicas::run(&contender, job, load).await,
    }
    Ok(())
}

async fn measure(wanted: &[String], length: Length) -> Result<(), Box<dyn Error>> {
    let is_wanted = |title: &str| wanted.is_empty() || wanted.iter().any(|it| title.contains(it));
    let mut scenarios = scenario::all();
    let titles: Vec<_> = scenarios.iter().map(|it| it.title.clone()).collect();
    scenarios.retain(|it| is_wanted(&it.title));
    if scenarios.is_empty() && !is_wanted(in_script::TITLE) {
        let titles = [&titles[..], &[in_script::TITLE.to_owned()]]
            .concat()
            .join("\n  ");
        return Err(format!("no title contains that; there are\n  {titles}").into());
    }
    let scenarios: Vec<_> = scenarios
        .into_iter()
        .map(|it| it.shortened(length))
        .collect();
    for scenario in &scenarios {
        scenario.check().await?;
    }
    let server = Server::start();
    let in_script = is_wanted(in_script::TITLE).then_some(in_script::EXPECTED);
    let mut progress = Progress::new(
        scenarios
            .iter()
            .map(Scenario::expected)
            .chain(in_script)
            .sum(),
    );
    let mut text = format!(
        "# tollgate and its peers, side by side\n\n{}\n{}\n",
        machine::describe(),
        report::NOTES
    );
    print!("{text}");
    let mut measured = Vec::new();
    for scenario in &scenarios {
        let outcomes = scenario.run(&server, &mut progress).await?;
        let table = report::table(&scenario.title, &outcomes, scenario.compared_with());
        println!("{table}");
        text += &format!("{table}\n");
        measured.push((&*scenario.title, outcomes));
    }
    if in_script.is_some() {
        progress.show(in_script::TITLE, "tollgate");
        let tables = in_script::measure(&server)?;
        println!("{tables}");
        text += &tables;
    }
    if wanted.is_empty() && length == Length::Full {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        std::fs::write(folder.join("RESULTS.md"), text)?;
        let short = folder.join("../src/guide/pictures/benchmark.svg");
        plot::draw(&folder.join("results.svg"), &short, &measured)?;
    }
    Ok(())
}
