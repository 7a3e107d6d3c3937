//! The metrics of this crate, as Prometheus gets them, on one thread.

use std::collections::BTreeMap;

use metrics::LocalRecorderGuard;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub struct Recorded {
    handle: PrometheusHandle,
    _guard: LocalRecorderGuard<'static>,
}

impl Recorded {
    /// Records what this thread does until it is dropped.
    pub fn start() -> Self {
        let seconds = Matcher::Full("tollgate_store_call_duration_seconds".to_owned());
        let checks = Matcher::Full("tollgate_store_call_checks".to_owned());
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(seconds, &[0.001, 0.01, 0.1, 1.0])
            .and_then(|it| it.set_buckets_for_metric(checks, &[1.0, 10.0, 100.0, 1_000.0]));
        let recorder = builder.expect("there are buckets").build_recorder();
        let handle = recorder.handle();
        // A guard borrows its recorder. A test has one.
        let guard = metrics::set_default_local_recorder(Box::leak(Box::new(recorder)));
        Self {
            handle,
            _guard: guard,
        }
    }

    /// What Prometheus would scrape.
    pub fn text(&self) -> String {
        self.handle.render()
    }

    /// The values of a metric, by its labels in the order of their names, such as
    /// `api allowed store`. Zeros are left out.
    pub fn of(&self, metric: &str) -> BTreeMap<String, f64> {
        let text = self.text();
        let of_metric = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(metric)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let labels = match labels.strip_prefix('{') {
                Some(labels) => labels.strip_suffix('}')?,
                None if labels.is_empty() => "",
                None => return None,
            };
            let mut pairs: Vec<_> = labels
                .split("\",")
                .filter_map(|pair| pair.split_once("=\""))
                .collect();
            pairs.sort_unstable();
            let values: Vec<_> = pairs
                .iter()
                .map(|(_, value)| value.trim_end_matches('"'))
                .collect();
            Some((values.join(" "), value.parse().ok()?))
        });
        of_metric.filter(|(_, value)| *value != 0.0).collect()
    }

    /// The value of a metric with these labels. Zero if there is none.
    pub fn one(&self, metric: &str, labels: &str) -> f64 {
        self.of(metric).get(labels).copied().unwrap_or(0.0)
    }

    /// The decisions, by limit, outcome and source.
    pub fn decisions(&self) -> Vec<(String, f64)> {
        self.of("tollgate_decisions_total").into_iter().collect()
    }
}

/// What [`Recorded::decisions`] should be.
pub fn counted<const N: usize>(expected: [(&str, u32); N]) -> Vec<(String, f64)> {
    expected
        .map(|(labels, count)| (labels.to_owned(), f64::from(count)))
        .to_vec()
}
