//! A line of input: a check, and a limit that may change with it.

use std::time::Duration;

use serde::Deserialize;
use tollgate::decision::Receipt;

use crate::limit::WireLimit;

/// The latest time that a `ManualClock` shows.
const LATEST_US: u64 = 200 * 366 * 24 * 60 * 60 * 1_000_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// The time, in microseconds since the Unix epoch.
    pub(crate) at_us: u64,
    #[serde(default)]
    pub(crate) op: Op,
    #[serde(default)]
    pub(crate) key: String,
    #[serde(default = "one")]
    pub(crate) cost: u32,
    /// Replaces the limit of its name, from this line on.
    pub(crate) limit: Option<WireLimit>,
    receipt: Option<WireReceipt>,
    /// The longest wait, in microseconds.
    #[serde(default)]
    pub(crate) max_wait_us: u64,
    /// The length of a block, in microseconds. 0 ends a block.
    #[serde(default)]
    pub(crate) block_us: u64,
}

const fn one() -> u32 {
    1
}

/// What a line asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    #[default]
    Charge,
    Peek,
    Refund,
    Settle,
    Reset,
    Block,
}

/// The charge that is refunded or settled.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireReceipt {
    at_us: u64,
    cost: u32,
    #[serde(default)]
    drains_at_us: u64,
}

impl Request {
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let request: Self = serde_json::from_str(line).map_err(|error| {
            // Each line is parsed alone, so the parser always reports line 1.
            error
                .to_string()
                .replace(" at line 1 column", ", at column")
        })?;
        if request.at_us > LATEST_US {
            return Err(format!(
                "at_us is {}, more than 200 years after 1970",
                request.at_us
            ));
        }
        Ok(request)
    }

    /// The receipt of the charge that is refunded or settled.
    pub(crate) fn receipt(&self) -> Receipt {
        let receipt = self.receipt.map(|charge| {
            let receipt = Receipt::new(Duration::from_micros(charge.at_us), charge.cost);
            receipt.with_drains_at(Duration::from_micros(charge.drains_at_us))
        });
        receipt.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_the_only_required_field() {
        let request = Request::parse(r#"{"at_us":7}"#).unwrap();
        assert_eq!(
            (request.at_us, request.op, request.cost),
            (7, Op::Charge, 1)
        );
        assert_eq!(
            (request.key.as_str(), request.receipt()),
            ("", Receipt::default())
        );
        assert!(request.limit.is_none());
    }

    #[test]
    fn operations_are_parsed_by_name() {
        for (name, op) in [
            ("charge", Op::Charge),
            ("peek", Op::Peek),
            ("refund", Op::Refund),
            ("settle", Op::Settle),
            ("reset", Op::Reset),
            ("block", Op::Block),
        ] {
            let request = Request::parse(&format!(r#"{{"at_us":7,"op":"{name}"}}"#)).unwrap();
            assert_eq!(request.op, op);
        }
    }

    #[test]
    fn refund_has_a_receipt() {
        let line = r#"{"at_us":9,"op":"refund","receipt":{"at_us":7,"cost":3}}"#;
        assert_eq!(
            Request::parse(line).unwrap().receipt(),
            Receipt::new(Duration::from_micros(7), 3)
        );
        let line = r#"{"at_us":9,"op":"settle","receipt":{"at_us":7,"cost":3,"drains_at_us":12}}"#;
        let receipt =
            Receipt::new(Duration::from_micros(7), 3).with_drains_at(Duration::from_micros(12));
        assert_eq!(Request::parse(line).unwrap().receipt(), receipt);
    }

    #[test]
    fn invalid_lines_are_errors_that_say_why_and_where() {
        for (line, reason) in [
            ("{}", "missing field `at_us`, at column 2"),
            ("[1", "at column"),
            (r#"{"at_us":-1}"#, "expected u64"),
            (
                r#"{"at_us":6400000000000000}"#,
                "more than 200 years after 1970",
            ),
            (r#"{"at_us":7,"op":"take"}"#, "unknown variant `take`"),
            (r#"{"at_us":7,"cost":4294967296}"#, "expected u32"),
            (r#"{"at_us":7,"user":"alice"}"#, "unknown field `user`"),
            (
                r#"{"at_us":7,"receipt":{"at_us":7}}"#,
                "missing field `cost`",
            ),
            (r#"{"at_us":7,"limit":{"name":"api"}}"#, "algorithm"),
        ] {
            let error = Request::parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
