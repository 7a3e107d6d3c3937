//! Totals of a replay, in field names that other programs rely on.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::request::Request;

const SECOND_US: u64 = 1_000_000;

/// Totals: checks, except for the peak rate, which is in units.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    checks: u64,
    #[serde(rename = "admitted")]
    allowed: u64,
    #[serde(rename = "refused")]
    denied: u64,
    peak_rate: Peak,
    keys: BTreeMap<String, Totals>,
    /// The allowed units, with their times.
    #[serde(skip)]
    charges: Vec<(u64, u64)>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Totals {
    #[serde(rename = "admitted")]
    allowed: u64,
    #[serde(rename = "refused")]
    denied: u64,
}

/// The most units that were allowed in any second, of all keys.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Peak {
    units_per_second: u64,
    from_us: u64,
}

impl Summary {
    /// Counts a charge that was allowed after a delay, or denied.
    pub(crate) fn count(&mut self, charge: &Request, allowed: bool, delay: Duration) {
        self.checks += 1;
        let totals = self.keys.entry(charge.key.clone()).or_default();
        if allowed {
            self.allowed += 1;
            totals.allowed += 1;
            // A delayed check counts when it leaves.
            let leaves_at = charge.at_us + delay.as_micros() as u64;
            self.charges.push((leaves_at, charge.cost.into()));
        } else {
            self.denied += 1;
            totals.denied += 1;
        }
    }

    /// The totals, with the peak rate.
    pub(crate) fn finish(mut self) -> Self {
        self.charges.sort_unstable();
        self.peak_rate = peak_rate(&self.charges);
        self
    }
}

/// The peak of charges in the order of their time.
fn peak_rate(charges: &[(u64, u64)]) -> Peak {
    let (mut peak, mut first, mut units) = (Peak::default(), 0, 0);
    for &(at, cost) in charges {
        units += cost;
        while charges[first].0 + SECOND_US <= at {
            units -= charges[first].1;
            first += 1;
        }
        if units > peak.units_per_second {
            peak = Peak {
                units_per_second: units,
                from_us: charges[first].0,
            };
        }
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_rate_is_the_most_units_in_any_second() {
        let peak = |units_per_second, from_us| Peak {
            units_per_second,
            from_us,
        };
        for (charges, expected) in [
            (&[][..], peak(0, 0)),
            (&[(5, 3)], peak(3, 5)),
            (&[(0, 1), (999_999, 1)], peak(2, 0)),
            (&[(0, 1), (1_000_000, 1)], peak(1, 0)),
            (&[(0, 2), (600_000, 2), (1_200_000, 3)], peak(5, 600_000)),
            (&[(0, 9), (1_000_000, 1), (1_000_001, 1)], peak(9, 0)),
        ] {
            assert_eq!(peak_rate(charges), expected, "{charges:?}");
        }
    }

    #[test]
    fn allowed_and_denied_checks_are_counted_for_each_key() {
        let mut summary = Summary::default();
        for (line, allowed, delay_us) in [
            (r#"{"at_us":0,"key":"a","cost":2}"#, true, 0),
            (r#"{"at_us":0,"key":"a","cost":3}"#, true, 2_000_000),
            (r#"{"at_us":0,"key":"a"}"#, false, 0),
            (r#"{"at_us":2000000,"key":"b"}"#, true, 0),
        ] {
            let charge = Request::parse(line).unwrap();
            summary.count(&charge, allowed, Duration::from_micros(delay_us));
        }
        let summary = summary.finish();
        assert_eq!((summary.checks, summary.allowed, summary.denied), (4, 3, 1));
        assert_eq!(
            summary.keys["a"],
            Totals {
                allowed: 2,
                denied: 1
            }
        );
        assert_eq!(
            summary.keys["b"],
            Totals {
                allowed: 1,
                denied: 0
            }
        );
        assert_eq!(
            summary.peak_rate,
            Peak {
                units_per_second: 4,
                from_us: 2_000_000
            }
        );
    }
}
