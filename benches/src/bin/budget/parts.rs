//! The parts of a request, and the code of each.

/// A part of a request's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Layer,
    Key,
    Limits,
    Group,
    Outages,
    Submit,
    Calls,
    Promise,
    MemoryStore,
    Arithmetic,
    Conclude,
    Headers,
    Lock,
    Clock,
    Timer,
    Wake,
    Hash,
    Bytes,
    Allocator,
    Copies,
    Rest,
    Kernel,
    Loop,
}

/// A part by the files of tollgate below `src`, or by modules, which start like that.
const FILES: [(Part, &[&str]); 14] = [
    (Part::Headers, &["http/headers", "http/number"]),
    (
        Part::Key,
        &[
            "http/client_ip",
            "http/extract",
            "http/key_extractor",
            "http/names",
            "http/path",
            "http/peer",
            "model/key",
        ],
    ),
    (
        Part::Limits,
        &[
            "http/copied_limit",
            "http/limits",
            "http/live",
            "http/policy",
            "model/limit",
        ],
    ),
    (
        Part::Group,
        &[
            "http/request_checks",
            "model/budget",
            "model/check",
            "model/digest",
            "model/group",
            "model/operation",
            "store/group",
        ],
    ),
    (
        Part::Conclude,
        &[
            "http/conclusion",
            "http/responder",
            "http/sampled",
            "limiter/denied_keys",
            "limiter/observation",
            "model/decision",
            "model/verdict",
            "telemetry",
        ],
    ),
    (Part::Layer, &["http"]),
    (Part::Promise, &["store/answer", "store/promise"]),
    (Part::MemoryStore, &["store/memory"]),
    (
        Part::Submit,
        &[
            "store/redis/batch",
            "store/redis/keys",
            "store/redis/lane",
            "store/redis/route",
            "store/redis/script",
            "store/redis/submit",
            "store/redis/wire",
        ],
    ),
    (Part::Calls, &["store/redis"]),
    (
        Part::Outages,
        &[
            "limiter",
            "store/breaker",
            "store/deny_cache",
            "store/heartbeat",
        ],
    ),
    (Part::Arithmetic, &["algorithm"]),
    (Part::Lock, &["units/lock"]),
    (Part::Clock, &["units/clock"]),
];

/// A part by the folders of libraries, the first that a file contains.
const LIBRARIES: [(Part, &[&str]); 8] = [
    (Part::Timer, &["/src/runtime/time/", "/src/time/"]),
    (
        Part::Calls,
        &["/redis-", "/combine-", "/futures-util-", "/tokio-util-"],
    ),
    (Part::Wake, &["/tokio-", "/mio-", "/src/task/wake.rs"]),
    (Part::Headers, &["/http-1", "/itoa-"]),
    (Part::Bytes, &["/bytes-"]),
    (Part::Hash, &["/hashbrown-", "/foldhash-", "/src/hash/"]),
    (Part::Lock, &["/sync/mutex", "/sys/sync/", "/sync/poison"]),
    (
        Part::Clock,
        &["/std/src/time.rs", "/sys/time/", "/unix/time.rs"],
    ),
];

/// A part by the functions of libraries, and of the C library, the first that a name contains.
const FUNCTIONS: [(Part, &[&str]); 6] = [
    (
        Part::Allocator,
        &[
            "malloc",
            "calloc",
            "realloc",
            "free",
            "_int_",
            "unlink_chunk",
            "alloc_shim",
            "_alloc",
            "_dealloc",
        ],
    ),
    (Part::Copies, &["memcpy", "memmove", "memset", "memcmp"]),
    (Part::Clock, &["clock_gettime"]),
    (
        Part::Kernel,
        &["recv", "writev", "epoll_", "pthread_", "syscall"],
    ),
    (Part::Headers, &["http::header"]),
    (Part::Calls, &["redis::", "combine::"]),
];

/// Where an instruction is.
pub struct Place<'a> {
    pub function: &'a str,
    /// The file of the instruction, which may have been inlined into the function.
    pub file: &'a str,
    pub file_of_function: &'a str,
}

impl Place<'_> {
    /// Code of the standard library that was inlined belongs to the function around it.
    pub fn part(&self) -> Part {
        let is_of_c = !self.function.contains("::") || self.function.starts_with("__rust");
        None.or_else(|| is_of_c.then(|| part_of_function(self.function))?)
            .or_else(|| part_of_file(self.file))
            .or_else(|| part_of_file(self.file_of_function))
            .or_else(|| part_of_module(self.function))
            .or_else(|| part_of_function(self.function))
            .unwrap_or(Part::Rest)
    }
}

fn part_of_function(function: &str) -> Option<Part> {
    first(&FUNCTIONS, |name| function.contains(name))
}

fn part_of_file(file: &str) -> Option<Part> {
    if file.contains("/benches/src/") {
        return Some(Part::Loop);
    }
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let own = own.strip_suffix("benches/")?;
    if let Some(file) = file
        .strip_prefix(own)
        .and_then(|file| file.trim_start_matches("benches/../").strip_prefix("src/"))
    {
        return part_of_own(file);
    }
    first(&LIBRARIES, |name| file.contains(name))
}

/// A function of the standard library for a type of tollgate, such as its `drop_in_place`.
fn part_of_module(function: &str) -> Option<Part> {
    if function.contains("budget::requests") {
        return Some(Part::Loop);
    }
    let (_, module) = function.split_once("tollgate::")?;
    part_of_own(&module.replace("::", "/"))
}

fn part_of_own(file: &str) -> Option<Part> {
    first(&FILES, |start| file.starts_with(start))
}

/// The first part with a name that matches.
fn first(parts: &[(Part, &[&str])], matches: impl Fn(&str) -> bool) -> Option<Part> {
    let part = parts
        .iter()
        .find(|(_, names)| names.iter().any(|name| matches(name)));
    part.map(|(part, _)| *part)
}

impl Part {
    pub const ALL: [Self; 23] = [
        Self::Loop,
        Self::Layer,
        Self::Key,
        Self::Limits,
        Self::Group,
        Self::Outages,
        Self::MemoryStore,
        Self::Arithmetic,
        Self::Submit,
        Self::Calls,
        Self::Promise,
        Self::Timer,
        Self::Wake,
        Self::Conclude,
        Self::Headers,
        Self::Lock,
        Self::Clock,
        Self::Hash,
        Self::Bytes,
        Self::Allocator,
        Self::Copies,
        Self::Rest,
        Self::Kernel,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Loop => "the loop that sends requests",
            Self::Layer => "layer: `call`, the response's future",
            Self::Key => "extract the key",
            Self::Limits => "choose the limits",
            Self::Group => "group the checks",
            Self::Outages => "failover, circuit breaker, remembered denials",
            Self::MemoryStore => "memory: find the budget",
            Self::Arithmetic => "decide",
            Self::Submit => "Redis: queue, batch, encode",
            Self::Calls => "Redis: send calls, read answers",
            Self::Promise => "promise of an answer",
            Self::Timer => "timers",
            Self::Wake => "tokio: wake and run tasks",
            Self::Conclude => "conclude: decision, span, metrics",
            Self::Headers => "headers",
            Self::Lock => "locks",
            Self::Clock => "clock",
            Self::Hash => "hash tables",
            Self::Bytes => "bytes of header values and of calls",
            Self::Allocator => "allocate and free",
            Self::Copies => "copy memory",
            Self::Rest => "the rest",
            Self::Kernel => "kernel",
        }
    }
}
