//! The metrics of limits, which each request changes. Their handles are kept in each thread.
//!
//! In memory, a request takes about a microsecond. To find a handle in the recorder takes a third
//! of that, because labels are copied, hashed and compared. Here it takes a look-up of the limit's
//! name.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ptr;
use std::sync::LazyLock;

use hashbrown::HashMap;
use metrics::{Counter, Gauge, Recorder};

use super::names::{DECISIONS, DENY_CACHE_HITS, KEYS, PERMITS_HELD};
use super::recorder::{self, GaugeLevel};
use super::{OutcomeLabel, source_name};
use crate::model::Source;
use crate::units::Mutex;

/// The most names of limits that are labels. Names are few, unless an application makes them of
/// what clients send.
const MAX_NAMES: usize = 1_000;

/// The label of further limits.
const OTHER: &str = "other";

/// The names that are labels, in this process.
static NAMES: LazyLock<Mutex<HashSet<Box<str>>>> = LazyLock::new(Mutex::default);

thread_local! {
    static HANDLES: RefCell<Handles> = RefCell::default();
}

struct Handles {
    /// The address of the recorder that made them.
    recorder: *const (),
    of_limits: HashMap<Box<str>, OfLimit>,
    deny_cache_hits: Option<Counter>,
}

impl Default for Handles {
    fn default() -> Self {
        Self {
            recorder: ptr::null(),
            of_limits: HashMap::new(),
            deny_cache_hits: None,
        }
    }
}

/// The labels of the extractors of a chain.
const EXTRACTORS: [&str; 4] = ["first", "second", "third", "further"];

/// The sources of decisions, and none.
const SOURCES: usize = Source::Override as usize + 2;

#[derive(Default)]
struct OfLimit {
    decisions: [[Option<Counter>; SOURCES]; OutcomeLabel::COUNT],
    permits: Option<Gauge>,
    keys: [Option<Counter>; EXTRACTORS.len()],
}

/// The decisions of which alerts wait for the first one. A counter that does not exist until then
/// has no rate.
const AWAITED: [(OutcomeLabel, Option<Source>); 8] = [
    (OutcomeLabel::Allowed, Some(Source::Store)),
    (OutcomeLabel::Denied, Some(Source::Store)),
    (OutcomeLabel::Denied, Some(Source::DenyCache)),
    (OutcomeLabel::Allowed, Some(Source::FailOpen)),
    (OutcomeLabel::Denied, Some(Source::FailClosed)),
    (OutcomeLabel::Allowed, Some(Source::Local)),
    (OutcomeLabel::Denied, Some(Source::Local)),
    (OutcomeLabel::Error, None),
];

impl OfLimit {
    /// The handles of a limit, with the awaited counters at 0.
    fn new(recorder: &dyn Recorder, limit: &str) -> Self {
        let mut handles = Self::default();
        for (outcome, source) in AWAITED {
            let counter = decisions(recorder, limit, outcome, source);
            counter.increment(0);
            handles.decisions[outcome as usize][place(source)] = Some(counter);
        }
        handles
    }
}

fn place(source: Option<Source>) -> usize {
    source.map_or(SOURCES - 1, |source| source as usize)
}

fn decisions(
    recorder: &dyn Recorder,
    limit: &str,
    outcome: OutcomeLabel,
    source: Option<Source>,
) -> Counter {
    let labels = [
        ("limit", limit),
        ("outcome", outcome.name()),
        ("source", source_name(source)),
    ];
    recorder::counter(recorder, &DECISIONS, &labels)
}

/// Creates the counters of a limit, at 0.
pub(super) fn announce(limit: &str) {
    with_handles(limit, |_, _| ());
}

/// Creates the counter of an outcome that few limits have, at 0.
pub(super) fn announce_outcome(limit: &str, outcome: OutcomeLabel, source: Option<Source>) {
    add_decisions(limit, outcome, source, 0);
}

/// Counts a decision.
pub(super) fn count(limit: &str, outcome: OutcomeLabel, source: Option<Source>) {
    add_decisions(limit, outcome, source, 1);
}

#[inline]
fn add_decisions(limit: &str, outcome: OutcomeLabel, source: Option<Source>, amount: u64) {
    with_handle(
        limit,
        |handles| &mut handles.decisions[outcome as usize][place(source)],
        |recorder, limit| decisions(recorder, limit, outcome, source),
        |counter| counter.increment(amount),
    );
}

/// Counts a key by the extractor that found it, after so many that found none.
pub(crate) fn found_key(limit: &str, fallbacks: usize) {
    let number = fallbacks.min(EXTRACTORS.len() - 1);
    with_handle(
        limit,
        |handles| &mut handles.keys[number],
        |recorder, limit| {
            let labels = [("limit", limit), ("extractor", EXTRACTORS[number])];
            recorder::counter(recorder, &KEYS, &labels)
        },
        |counter| counter.increment(1),
    );
}

/// Counts a permit as held, until it is dropped.
pub(crate) fn hold_permit(limit: &str) -> GaugeLevel {
    let gauge = with_handle(
        limit,
        |handles| &mut handles.permits,
        |recorder, limit| recorder::gauge(recorder, &PERMITS_HELD, &[("limit", limit)]),
        Gauge::clone,
    );
    GaugeLevel::one(gauge)
}

/// Counts a check that is denied again without asking the store.
pub(crate) fn denied_from_cache() {
    recorder::with(|recorder, address| {
        let register = || recorder::counter(recorder, &DENY_CACHE_HITS, &[]);
        let counted = with_handles_of(address, |handles| {
            handles
                .deny_cache_hits
                .get_or_insert_with(register)
                .increment(1);
            Some(())
        });
        if counted.is_none() {
            register().increment(1);
        }
    });
}

/// Calls `act` with one handle of a limit, which is registered if it is not there.
#[inline]
fn with_handle<H, T>(
    limit: &str,
    of: impl FnOnce(&mut OfLimit) -> &mut Option<H>,
    register: impl Fn(&dyn Recorder, &str) -> H,
    act: impl Fn(&H) -> T,
) -> T {
    let done = with_handles(limit, |recorder, handles| {
        act(of(handles).get_or_insert_with(|| register(recorder, limit)))
    });
    done.unwrap_or_else(|| recorder::with(|recorder, _| act(&register(recorder, label(limit)))))
}

/// Calls `act` with the handles of a limit. `None` if this thread keeps none, because the limit has
/// no label of its own, or the thread ends.
fn with_handles<T>(limit: &str, act: impl FnOnce(&dyn Recorder, &mut OfLimit) -> T) -> Option<T> {
    recorder::with(|recorder, address| {
        with_handles_of(address, |handles| {
            if let Some(known) = handles.of_limits.get_mut(limit) {
                return Some(act(recorder, known));
            }
            let is_kept = label(limit) != OTHER;
            is_kept.then(|| {
                let entry = handles.of_limits.entry(limit.into());
                act(
                    recorder,
                    entry.or_insert_with(|| OfLimit::new(recorder, limit)),
                )
            })
        })
    })
}

/// Calls `act` with the handles that this thread has of a recorder.
fn with_handles_of<T>(
    recorder: *const (),
    act: impl FnOnce(&mut Handles) -> Option<T>,
) -> Option<T> {
    let done = HANDLES.try_with(|handles| {
        let handles = &mut *handles.try_borrow_mut().ok()?;
        if handles.recorder != recorder {
            *handles = Handles {
                recorder,
                ..Handles::default()
            };
        }
        act(handles)
    });
    done.ok().flatten()
}

/// The label of a limit, its name, or a common one if there are too many.
pub(super) fn label(limit: &str) -> &str {
    let mut names = NAMES.lock();
    if names.contains(limit) || (names.len() < MAX_NAMES && names.insert(limit.into())) {
        limit
    } else {
        OTHER
    }
}
