//! Time, sampled by perf.

use std::collections::BTreeMap;
use std::process::Command;

use crate::Failure;
use crate::instructions::Instructions;
use crate::parts::{Part, Place};
use crate::requests::Usage;
use crate::tool::{OutputFile, Run, output};

/// Runs the case at full speed. Returns the nanoseconds of CPU a request by part, and what the
/// process used in all.
pub fn take(
    run: &Run,
    instructions: &Instructions,
) -> Result<(BTreeMap<Part, f64>, Usage), Failure> {
    let file = OutputFile::new("perf");
    let path = file.path().to_string_lossy();
    // A clock of the kernel, because virtual machines seldom have counters of cycles.
    let tool = ["perf", "record", "-e", "cpu-clock", "-F", "4000", "-o"];
    let tool = [&tool[..], &[&*path, "--"]].concat();
    let printed = run.under(&tool, run.case.requests_at_full_speed())?.stdout;
    let usage = usage(&String::from_utf8_lossy(&printed)).ok_or("a run prints what it used")?;

    let mut script = Command::new("perf");
    script.args(["script", "-F", "ip,sym,dso", "-i", &*path]);
    let listing = output(&mut script)?.stdout;
    let mut samples: BTreeMap<Part, f64> = BTreeMap::new();
    for part in String::from_utf8_lossy(&listing)
        .lines()
        .filter_map(|line| part_of(line, instructions))
    {
        *samples.entry(part).or_default() += 1.0;
    }
    let all: f64 = samples.values().sum();
    for of_part in samples.values_mut() {
        *of_part *= usage.cpu_ns / all;
    }
    Ok((samples, usage))
}

fn usage(printed: &str) -> Option<Usage> {
    let (cpu_ns, switches) = printed.lines().last()?.split_once(' ')?;
    Some(Usage {
        cpu_ns: cpu_ns.parse().ok()?,
        switches: switches.parse().ok()?,
    })
}

/// The part of a sample. A line is `ADDRESS SYMBOL (OBJECT)`.
fn part_of(line: &str, instructions: &Instructions) -> Option<Part> {
    let (address, rest) = line.trim().split_once(' ')?;
    let (function, object) = rest.rsplit_once(" (")?;
    if object.starts_with("[kernel") {
        return Some(Part::Kernel);
    }
    let address = u64::from_str_radix(address, 16).ok()?;
    let place = Place {
        function,
        file: "",
        file_of_function: "",
    };
    // The rest is in libraries, or ran in no counted request.
    let known = instructions.part_at.get(&address);
    Some(known.copied().unwrap_or_else(|| place.part()))
}
