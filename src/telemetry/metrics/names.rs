//! The metrics: names, units and descriptions.

/// A metric.
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
}

impl Metric {
    const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help }
    }
}

pub(super) static DECISIONS: Metric = Metric::new(
    "tollgate_decisions_total",
    "Decisions, one for each limit of a request, by outcome and by the place where they were made.",
);

pub(super) static STORE_FAILURES: Metric = Metric::new(
    "tollgate_store_failures_total",
    "Checks that the store did not decide, by cause.",
);

pub(super) static UNCHECKED_REQUESTS: Metric = Metric::new(
    "tollgate_unchecked_requests_total",
    "Requests that no limit was asked about, by reason, and whether they were forwarded or \
     rejected.",
);

pub(super) static KEYS: Metric = Metric::new(
    "tollgate_keys_total",
    "Keys of limits with fallback extractors, by the extractor that found them.",
);

pub(super) static BLOCKS: Metric = Metric::new(
    "tollgate_blocks_total",
    "Blocks of keys that began with a denial.",
);

pub(super) static LOOKUP_FAILURES: Metric = Metric::new(
    "tollgate_lookup_failures_total",
    "Look-ups of the application that failed or took too long.",
);

pub(super) static UNSETTLED: Metric = Metric::new(
    "tollgate_settlement_failures_total",
    "Real costs of requests that were not charged, or not given back.",
);

pub(super) static CONFIGURATION_UPDATES: Metric = Metric::new(
    "tollgate_configuration_updates_total",
    "New versions of limits from a configuration that were put in force or rejected.",
);

pub(super) static CONFIGURATIONS_REJECTED: Metric = Metric::new(
    "tollgate_configurations_rejected",
    "Sets of limits of this process whose newest version has an error, so that an older one is in \
     force.",
);

pub(super) static DENY_CACHE_HITS: Metric = Metric::new(
    "tollgate_deny_cache_hits_total",
    "Checks that were denied again without asking the store.",
);

pub(super) static PREPAID_UNITS: Metric = Metric::new(
    "tollgate_prepaid_units_total",
    "Units that asynchronous limits charged ahead, and units that they returned unspent.",
);

pub(super) static PAID_UNITS: Metric = Metric::new(
    "tollgate_paid_units_total",
    "Units that this process allowed by itself under limits with an overshoot, and charged later.",
);

pub(super) static UNITS_ABOVE_LIMIT: Metric = Metric::new(
    "tollgate_units_above_limit_total",
    "Units that this process charged later, and that did not fit under their limit then.",
);

pub(super) static UNPAID_KEYS: Metric = Metric::new(
    "tollgate_unpaid_keys",
    "Keys with units that this process allowed by itself and has not charged, or charged in the \
     last 4 seconds.",
);

pub(super) static UNPAID_SECONDS: Metric = Metric::new(
    "tollgate_unpaid_seconds",
    "Seconds since the first attempt of the oldest charge that is repeated, of units that this \
     process allowed by itself. 0 if none is. It is looked at every 4 seconds.",
);

pub(super) static REPLICAS: Metric = Metric::new(
    "tollgate_replicas",
    "Processes that share the overshoot of limits, as this process knows. 0: it has no share.",
);

pub(super) static OVERRIDES: Metric = Metric::new(
    "tollgate_overrides",
    "Overrides of keys that this process has.",
);

pub(super) static OVERRIDES_UNREAD: Metric = Metric::new(
    "tollgate_override_read_failures_total",
    "Attempts to read the overrides in Redis that failed.",
);

pub(super) static PERMITS_HELD: Metric = Metric::new(
    "tollgate_permits_held",
    "Permits of concurrency limits that this process holds.",
);

pub(super) static WAITING_REQUESTS: Metric = Metric::new(
    "tollgate_waiting_requests",
    "Requests of this process that wait for units or for permits.",
);

pub(super) static STORE_CALL_DURATION: Metric = Metric::new(
    "tollgate_store_call_duration_seconds",
    "Time from sending a call to the store to its reply, or to the end of the wait for it.",
);

pub(super) static STORE_CALL_CHECKS: Metric = Metric::new(
    "tollgate_store_call_checks",
    "Checks that one call to the store decides.",
);

pub(super) static QUEUED_CHECKS: Metric = Metric::new(
    "tollgate_queued_checks",
    "Checks of this process that wait to be sent to the store, or for its answer.",
);

pub(super) static CONNECTIONS: Metric = Metric::new(
    "tollgate_store_connections_total",
    "Connections to the store that were opened, that failed to open, and that were lost.",
);

pub(super) static BREAKERS: Metric = Metric::new(
    "tollgate_circuit_breakers",
    "Circuit breakers of this process that are open or half-open.",
);

pub(super) static BREAKER_TRANSITIONS: Metric = Metric::new(
    "tollgate_circuit_breaker_transitions_total",
    "Transitions of circuit breakers, by the new state.",
);

/// The histograms, each with boundaries of buckets that suit it: seconds of a call, and checks in
/// one call.
#[cfg(feature = "metrics")]
pub const HISTOGRAMS: [(&str, &[f64]); 2] = [
    (
        "tollgate_store_call_duration_seconds",
        &[
            0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
        ],
    ),
    (
        "tollgate_store_call_checks",
        &[
            1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
        ],
    ),
];

/// The counters, for their descriptions.
pub(super) static COUNTERS: [&Metric; 15] = [
    &DECISIONS,
    &STORE_FAILURES,
    &UNCHECKED_REQUESTS,
    &KEYS,
    &BLOCKS,
    &LOOKUP_FAILURES,
    &UNSETTLED,
    &CONFIGURATION_UPDATES,
    &OVERRIDES_UNREAD,
    &DENY_CACHE_HITS,
    &PREPAID_UNITS,
    &PAID_UNITS,
    &UNITS_ABOVE_LIMIT,
    &CONNECTIONS,
    &BREAKER_TRANSITIONS,
];

/// The gauges, for their descriptions.
pub(super) static GAUGES: [&Metric; 9] = [
    &CONFIGURATIONS_REJECTED,
    &OVERRIDES,
    &PERMITS_HELD,
    &WAITING_REQUESTS,
    &QUEUED_CHECKS,
    &BREAKERS,
    &UNPAID_KEYS,
    &UNPAID_SECONDS,
    &REPLICAS,
];
