//! tollgate and its peers, side by side: each as a tower service, in one process, on one Redis that
//! is started for it, in turn and in several rounds.
//!
//! Without an argument, everything is measured, and `benches/RESULTS.md` and `benches/results.svg`
//! are written. With arguments, only those scenarios are measured whose titles contain one of them;
//! the results are printed.

mod contenders;
mod cpu;
mod in_script;
mod load;
mod machine;
mod plot;
mod redis_server;
mod report;
mod scenario;
mod users;

use std::env;
use std::path::Path;

use redis_server::Server;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted: Vec<_> = env::args().skip(1).collect();
    let is_wanted = |title: &str| wanted.is_empty() || wanted.iter().any(|it| title.contains(it));
    let scenarios = scenario::all();
    let titles = || scenarios.iter().map(|it| &*it.title).chain([in_script::TITLE]);
    if !titles().any(is_wanted) {
        let titles = titles().collect::<Vec<_>>().join(" | ");
        return Err(format!("no title contains that; there are {titles}").into());
    }
    let server = Server::start();
    let mut text = format!(
        "# tollgate and its peers, side by side\n\n{}\n{}\n",
        machine::describe(),
        report::NOTES
    );
    print!("{text}");
    let mut measured = Vec::new();
    for scenario in scenarios.iter().filter(|it| is_wanted(&it.title)) {
        let results = scenario.run(&server).await;
        let table = report::table(&scenario.title, &results);
        println!("{table}");
        text += &format!("{table}\n");
        measured.push((&*scenario.title, results));
    }
    if is_wanted(in_script::TITLE) {
        let tables = in_script::measure(&server)?;
        println!("{tables}");
        text += &tables;
    }
    if wanted.is_empty() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        std::fs::write(folder.join("RESULTS.md"), text)?;
        plot::draw(&folder.join("results.svg"), &measured)?;
    }
    Ok(())
}
