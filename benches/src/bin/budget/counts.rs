//! Allocations and copies, counted by DHAT, and system calls, counted by strace.

use std::collections::BTreeMap;

use crate::Failure;
use crate::tool::{OutputFile, Run};

/// The allocations, copies and system calls of a request.
pub struct Counts {
    pub allocations: f64,
    pub bytes_allocated: f64,
    pub bytes_copied: f64,
    by_system_call: BTreeMap<String, f64>,
}

/// The system calls with a row of their own.
const SYSTEM_CALLS: [(&str, &str); 5] = [
    ("system calls: `writev`", "writev"),
    ("system calls: `recvfrom`", "recvfrom"),
    ("system calls: `epoll_wait`", "epoll_wait"),
    ("system calls: `write`, which wakes a worker", "write"),
    ("system calls: `futex`", "futex"),
];

impl Counts {
    pub fn take(run: &Run) -> Result<Self, Failure> {
        let requests = run.case.requests();
        let [short, long] = [requests, 2 * requests].map(|requests| Total::of(run, requests));
        let (short, long) = (short?, long?);
        let per_request = |short: u64, long: u64| (long as f64 - short as f64) / requests as f64;
        let by_system_call = long.system_calls.iter().map(|(name, &calls)| {
            let before = short.system_calls.get(name).copied().unwrap_or_default();
            (name.clone(), per_request(before, calls))
        });
        Ok(Self {
            allocations: per_request(short.allocations, long.allocations),
            bytes_allocated: per_request(short.bytes_allocated, long.bytes_allocated),
            bytes_copied: per_request(short.bytes_copied, long.bytes_copied),
            by_system_call: by_system_call.collect(),
        })
    }

    pub fn system_calls(&self) -> impl Iterator<Item = (&'static str, f64)> {
        SYSTEM_CALLS
            .map(|(row, call)| {
                let calls = self.by_system_call.get(call).copied();
                (row, calls.unwrap_or_default())
            })
            .into_iter()
    }
}

/// The counts of a whole run.
struct Total {
    allocations: u64,
    bytes_allocated: u64,
    bytes_copied: u64,
    system_calls: BTreeMap<String, u64>,
}

impl Total {
    fn of(run: &Run, requests: usize) -> Result<Self, Failure> {
        let (bytes_allocated, allocations) = dhat(run, "heap", requests)?;
        let (bytes_copied, _) = dhat(run, "copy", requests)?;
        Ok(Self {
            allocations,
            bytes_allocated,
            bytes_copied,
            system_calls: strace(run, requests)?,
        })
    }
}

/// Bytes, and how many allocations or copies there were.
fn dhat(run: &Run, mode: &str, requests: usize) -> Result<(u64, u64), Failure> {
    let file = OutputFile::new("dhat");
    let to_file = format!("--dhat-out-file={}", file.path().display());
    let mode = format!("--mode={mode}");
    let printed = run
        .under(&["valgrind", "--tool=dhat", &mode, &to_file], requests)?
        .stderr;
    // Such as `==12345== Total:     1,234 bytes in 56 blocks`.
    let printed = String::from_utf8_lossy(&printed);
    let total = printed.lines().find_map(|line| {
        let (bytes, blocks) = line.split_once("Total:")?.1.split_once(" bytes in ")?;
        Some((number(bytes)?, number(blocks.split(' ').next()?)?))
    });
    total.ok_or_else(|| format!("DHAT prints no total: {printed}").into())
}

fn number(text: &str) -> Option<u64> {
    text.trim().replace(',', "").parse().ok()
}

/// How often each system call was made.
fn strace(run: &Run, requests: usize) -> Result<BTreeMap<String, u64>, Failure> {
    let file = OutputFile::new("strace");
    let path = file.path().to_string_lossy();
    let tool = ["strace", "-f", "-c", "-U", "calls,name", "-o", &*path, "--"];
    run.under(&tool, requests)?;
    let table = file.read()?;
    let calls = table.lines().filter_map(|line| {
        let (calls, name) = line.trim().split_once(' ')?;
        Some((name.trim().to_owned(), calls.parse().ok()?))
    });
    Ok(calls.collect())
}
