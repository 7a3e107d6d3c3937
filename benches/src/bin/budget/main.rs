//! The instructions and the time of a request, part by part, and its other costs. Run it with
//! `make budget`, on Linux on x86-64.
//!
//! The program sends requests to itself while four tools watch it. callgrind counts instructions,
//! perf samples the time, DHAT counts allocations and copies, and strace counts system calls. Each
//! count is the difference of a run and of one twice as long, so the start does not count. The time
//! and the switches of threads are of one run at full speed, with its start.
//!
//! Under a tool, the program is slower and Redis is not. So with many requests at once, batches have
//! other sizes than at full speed, and a count says less of the time than with one request.

mod counts;
mod instructions;
mod parts;
mod requests;
mod samples;
mod tool;

#[path = "../../../../tests/support/redis_server.rs"]
mod support;

use std::collections::BTreeMap;
use std::env;

use counts::Counts;
use instructions::{Atomic, Instructions};
use parts::Part;
use requests::{Case, Usage};
use support::RedisServer;
use tool::Run;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if let [job, case, requests, url] = &arguments[..]
        && job == tool::REQUESTS
    {
        return requests::send(case.parse()?, requests.parse()?, url);
    }
    let server = RedisServer::start();
    println!("A request, with the loop that sends it.\n");
    let atomic = Atomic::of_this_program()?;
    let mut costs = Vec::new();
    for case in Case::ALL {
        let run = Run::new(case, server.url());
        let measured = Measured::take(&run, &atomic)?;
        println!("{measured}");
        costs.push((case, measured.costs()));
    }
    print_costs(&costs);
    Ok(())
}

/// All figures of one case, a request each.
struct Measured {
    case: Case,
    instructions: Instructions,
    /// Nanoseconds of CPU by part.
    time: BTreeMap<Part, f64>,
    usage: Usage,
    counts: Counts,
}

impl Measured {
    fn take(run: &Run, atomic: &Atomic) -> Result<Self, Failure> {
        let instructions = Instructions::count(run, atomic)?;
        let (time, usage) = samples::take(run, &instructions)?;
        Ok(Self {
            case: run.case,
            instructions,
            time,
            usage,
            counts: Counts::take(run)?,
        })
    }

    /// The costs that are not of one part, each with its unit.
    fn costs(&self) -> Vec<(&'static str, f64)> {
        let mut costs = vec![
            ("instructions", self.instructions.total()),
            ("ns of CPU", self.usage.cpu_ns),
            ("allocations", self.counts.allocations),
            ("bytes allocated", self.counts.bytes_allocated),
            ("bytes copied by `memcpy`", self.counts.bytes_copied),
            ("atomic writes, locks among them", self.instructions.atomic),
            ("clock reads", self.instructions.clock_reads),
            ("polls of tasks", self.instructions.task_polls),
            ("switches of threads", self.usage.switches),
        ];
        costs.extend(self.counts.system_calls());
        costs
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "### {}\n", self.case.title())?;
        writeln!(f, "| part | instructions | ns of CPU |\n|---|--:|--:|")?;
        for part in Part::ALL {
            let instructions = self.instructions.by_part.get(&part);
            let instructions = instructions.copied().unwrap_or_default();
            let ns = self.time.get(&part).copied().unwrap_or_default();
            if instructions >= 0.5 || ns >= 0.5 {
                writeln!(f, "| {} | {instructions:.0} | {ns:.0} |", part.name())?;
            }
        }
        let (instructions, ns) = (self.instructions.total(), self.usage.cpu_ns);
        writeln!(f, "| **all** | **{instructions:.0}** | **{ns:.0}** |")
    }
}

/// A row for each cost, and a column for each case.
fn print_costs(costs: &[(Case, Vec<(&'static str, f64)>)]) {
    let titles: Vec<_> = costs.iter().map(|(case, _)| case.title()).collect();
    println!("### A request costs\n\n| | {} |", titles.join(" | "));
    println!("|---|{}", "--:|".repeat(titles.len()));
    for (row, (name, _)) in costs[0].1.iter().enumerate() {
        // The difference of two runs may be a little below 0.
        let values = costs
            .iter()
            .map(|(_, of_case)| match of_case[row].1.max(0.0) {
                value if value < 100.0 => format!("{value:.2}"),
                value => format!("{value:.0}"),
            });
        println!("| {name} | {} |", values.collect::<Vec<_>>().join(" | "));
    }
}
