//! The format of limits in the test vectors and on the command line.

use serde::Deserialize;
use serde_json::{Map, Value};
use tollgate::Limit;

/// A limit in the format of [`tollgate::Limit`]. `limit` and `period_us` may replace `quota`, and
/// `cells` is the number of sub-windows. `shadow` is shadow mode.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub(crate) struct WireLimit(pub(crate) Limit);

impl TryFrom<Map<String, Value>> for WireLimit {
    type Error = String;

    fn try_from(mut fields: Map<String, Value>) -> Result<Self, String> {
        if let Some(micros) = fields.remove("period_us") {
            let micros = micros.as_u64().ok_or("`period_us` is not a whole number")?;
            let limit = fields.remove("limit").ok_or("`limit` is missing")?;
            let quota = format!("{limit}/{micros}us");
            if fields.insert("quota".to_owned(), quota.into()).is_some() {
                return Err("`quota` stands for `limit` and `period_us`: remove one".to_owned());
            }
        }
        if let Some(sub_windows) = fields.remove("cells") {
            fields.insert("sub_windows".to_owned(), sub_windows);
        }
        if fields.remove("shadow") == Some(Value::Bool(true)) {
            fields.insert("shadow_percent".to_owned(), 100.into());
        }
        serde_json::from_value(Value::Object(fields))
            .map(Self)
            .map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Limit, String> {
        let limit = serde_json::from_str(json).map(|WireLimit(limit)| limit);
        limit.map_err(|error| error.to_string())
    }

    #[test]
    fn period_us_is_the_period_in_microseconds() {
        let with_unit = r#"{"name":"api","algorithm":"gcra","quota":"5/1500ms"}"#;
        let in_micros = r#"{"name":"api","algorithm":"gcra","limit":5,"period_us":1500000}"#;
        assert_eq!(parse(with_unit).unwrap(), parse(in_micros).unwrap());
    }

    #[test]
    fn cells_are_the_sub_windows_of_a_sliding_window() {
        let json =
            r#"{"name":"api","algorithm":"sliding_window","limit":5,"period_us":9,"cells":3}"#;
        let quota = tollgate::Quota::new(5, std::time::Duration::from_micros(9));
        assert_eq!(
            parse(json).unwrap(),
            Limit::sliding_window_with("api", quota, 3).unwrap()
        );
    }

    #[test]
    fn invalid_limits_are_errors_that_say_why() {
        for (quota, reason) in [
            (
                r#""limit":5,"period_us":1.5"#,
                "`period_us` is not a whole number",
            ),
            (r#""period_us":1"#, "`limit` is missing"),
            (
                r#""limit":5,"period_us":1,"quota":"5/1us""#,
                "`quota` stands for `limit` and `period_us`",
            ),
            (
                r#""limit":5,"period_us":1,"color":"red""#,
                "unknown field `color`",
            ),
            (r#""quota":"5/soon""#, "soon"),
        ] {
            let json = format!(r#"{{"name":"api","algorithm":"gcra",{quota}}}"#);
            let error = parse(&json).unwrap_err();
            assert!(error.contains(reason), "{json}: {error}");
        }
    }
}
