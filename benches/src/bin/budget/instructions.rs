//! Instructions, counted by callgrind.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::env;
use std::process::Command;

use crate::Failure;
use crate::parts::{Part, Place};
use crate::tool::{OutputFile, Run, output};

/// The instructions of a request.
pub struct Instructions {
    pub by_part: BTreeMap<Part, f64>,
    /// Atomic instructions. A lock is at least one, and so is a change of a reference count.
    pub atomic: f64,
    pub clock_reads: f64,
    pub task_polls: f64,
    /// The part of each instruction of this program, by its address.
    pub part_at: HashMap<u64, Part>,
}

impl Instructions {
    pub fn count(run: &Run, atomic: &Atomic) -> Result<Self, Failure> {
        let requests = run.case.requests();
        let short = Profile::of(run, atomic, requests)?;
        let long = Profile::of(run, atomic, 2 * requests)?;
        let per_request = |short: u64, long: u64| (long as f64 - short as f64) / requests as f64;

        let mut by_part = BTreeMap::new();
        for (&part, &instructions) in &long.by_part {
            let before = short.by_part.get(&part).copied().unwrap_or_default();
            by_part.insert(part, per_request(before, instructions));
        }
        Ok(Self {
            by_part,
            atomic: per_request(short.atomic, long.atomic),
            clock_reads: per_request(short.clock_reads, long.clock_reads),
            task_polls: per_request(short.task_polls, long.task_polls),
            part_at: long.part_at,
        })
    }

    pub fn total(&self) -> f64 {
        self.by_part.values().sum()
    }
}

/// The counts of one run.
#[derive(Default)]
struct Profile {
    by_part: HashMap<Part, u64>,
    atomic: u64,
    clock_reads: u64,
    task_polls: u64,
    part_at: HashMap<u64, Part>,
}

impl Profile {
    fn of(run: &Run, atomic: &Atomic, requests: usize) -> Result<Self, Failure> {
        let file = OutputFile::new("callgrind");
        let to_file = format!("--callgrind-out-file={}", file.path().display());
        let tool = [
            "valgrind",
            "--tool=callgrind",
            "--dump-instr=yes",
            "--compress-pos=no",
            "--compress-strings=no",
            &to_file,
        ];
        run.under(&tool, requests)?;
        Ok(Self::parse(&file.read()?, atomic))
    }

    /// Reads callgrind's format: <https://valgrind.org/docs/manual/cl-format.html>.
    fn parse(profile: &str, atomic: &Atomic) -> Self {
        let program = env::current_exe().unwrap_or_default();
        let program = program.to_string_lossy();
        let mut this = Self::default();
        let (mut object, mut function, mut file) = ("", "", "");
        let mut file_of_function = "";
        // The function that is called by the next line.
        let mut callee = "";
        let mut calls = None;
        for line in profile.lines() {
            match line.split_once('=') {
                Some(("ob", name)) => object = name,
                Some(("fn", name)) => (function, file_of_function) = (name, file),
                Some(("fl" | "fi" | "fe", name)) => file = name,
                Some(("cfn", name)) => callee = name,
                Some(("calls", count)) => {
                    let count = count.split(' ').next();
                    calls = count.and_then(|count| count.parse::<u64>().ok());
                }
                Some(_) => {}
                None => {
                    let Some((address, cost)) = address_and_cost(line) else {
                        continue;
                    };
                    // Costs of a call count where they arise.
                    if let Some(calls) = calls.take() {
                        this.count_calls(callee, calls);
                        continue;
                    }
                    let place = Place {
                        function,
                        file,
                        file_of_function,
                    };
                    let part = place.part();
                    *this.by_part.entry(part).or_default() += cost;
                    if object == program {
                        this.part_at.insert(address, part);
                        if atomic.0.contains(&address) {
                            this.atomic += cost;
                        }
                    }
                }
            }
        }
        this
    }

    fn count_calls(&mut self, callee: &str, calls: u64) {
        if callee.starts_with("clock_gettime") {
            self.clock_reads += calls;
        }
        if callee.starts_with("tokio::runtime::task::raw::poll") {
            self.task_polls += calls;
        }
    }
}

/// The address of an instruction, and how often it ran. A line is `0xADDRESS LINE COST`.
fn address_and_cost(line: &str) -> Option<(u64, u64)> {
    let mut columns = line.split(' ');
    let address = columns.next()?.strip_prefix("0x")?;
    let cost = columns.nth(1)?.parse().ok()?;
    Some((u64::from_str_radix(address, 16).ok()?, cost))
}

/// The addresses of this program's atomic instructions. They have a `lock` prefix, or are `xchg`
/// with memory, which needs none.
pub struct Atomic(HashSet<u64>);

impl Atomic {
    pub fn of_this_program() -> Result<Self, Failure> {
        let mut command = Command::new("objdump");
        command
            .args(["--disassemble", "--no-show-raw-insn"])
            .arg(env::current_exe()?);
        let listing = output(&mut command)?.stdout;
        let addresses = String::from_utf8_lossy(&listing)
            .lines()
            .filter_map(|line| {
                let (address, instruction) = line.split_once(":\t")?;
                let is_atomic = instruction.starts_with("lock")
                    || (instruction.starts_with("xchg") && instruction.contains('('));
                let address = u64::from_str_radix(address.trim(), 16);
                address.ok().filter(|_| is_atomic)
            })
            .collect();
        Ok(Self(addresses))
    }
}
