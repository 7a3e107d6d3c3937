//! Limits on the command line: `gcra 100/min burst 20`.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use tollgate::limit::Period;
use tollgate::{Limit, Quota};

use crate::duration::exact;

/// An algorithm as a word, and the sub-windows of a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Algorithm {
    pub(crate) name: &'static str,
    sub_windows: Option<u32>,
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

const ALGORITHMS: [&str; 7] = [
    "token_bucket",
    "gcra",
    "leaky_bucket",
    "sliding_window",
    "sliding_log",
    "fixed_window",
    "fixed_window_aligned",
];

/// A limit without a name, as it is written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitSpec {
    pub(crate) algorithm: Algorithm,
    pub(crate) quota: Quota,
    /// `true` if the burst was written, also if it is the limit.
    has_burst: bool,
}

/// The words of a text: what it says, and what it leaves out.
struct Words {
    algorithm: Option<Algorithm>,
    quota: Option<Quota>,
    burst: Option<u64>,
}

impl FromStr for Algorithm {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, sub_windows) = match text.strip_suffix(')').and_then(|it| it.split_once('(')) {
            Some(("sliding_window", number)) => {
                let number = number
                    .parse()
                    .with_context(|| format!("`{text}` has no number of sub-windows: 1 to 100"))?;
                ("sliding_window", Some(number))
            }
            _ => (text, None),
        };
        let name = ALGORITHMS.into_iter().find(|it| *it == name);
        let name = name
            .with_context(|| format!("`{text}` is no algorithm; use {}", ALGORITHMS.join(", ")))?;
        Ok(Self { name, sub_windows })
    }
}

impl FromStr for Words {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let text = text.trim();
        let (rest, burst) = match text.split_once("burst") {
            Some((rest, burst)) => {
                let burst = burst.trim_start_matches(['=', ' ']).trim();
                let burst = burst.parse().with_context(|| {
                    format!("the burst `{burst}` is not a whole number, as in `10/s burst 20`")
                })?;
                (rest.trim(), Some(burst))
            }
            None => (text, None),
        };
        let starts_with_word = rest.starts_with(|it: char| it.is_ascii_alphabetic());
        let (algorithm, quota) = match rest.split_once(' ') {
            _ if !starts_with_word => (None, rest),
            Some((algorithm, quota)) => (Some(algorithm.parse()?), quota.trim()),
            None => (Some(rest.parse()?), ""),
        };
        let quota = if quota.is_empty() {
            None
        } else {
            Some(quota.parse()?)
        };
        Ok(Self {
            algorithm,
            quota,
            burst,
        })
    }
}

impl FromStr for LimitSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let words: Words = text.parse()?;
        let Some(quota) = words.quota else {
            bail!("the limit `{text}` has no quota; write one, such as `100/min`");
        };
        let quota = words.burst.map_or(quota, |burst| quota.burst(burst));
        // Only a fixed window has the periods of a calendar.
        let default = match quota.period() {
            Period::Calendar(_) => "fixed_window",
            _ => "token_bucket",
        };
        let algorithm = words.algorithm.unwrap_or(Algorithm::named(default));
        let spec = Self {
            algorithm,
            quota,
            has_burst: words.burst.is_some(),
        };
        drop(spec.limit("limit")?);
        Ok(spec)
    }
}

impl Algorithm {
    /// One of the names above, without settings.
    pub(crate) const fn named(name: &'static str) -> Self {
        Self {
            name,
            sub_windows: None,
        }
    }
}

impl LimitSpec {
    pub(crate) fn of(algorithm: Algorithm, quota: Quota) -> Self {
        Self {
            algorithm,
            quota,
            has_burst: false,
        }
    }

    /// Another limit, which has of this one what its text leaves out. A burst goes with its quota.
    pub(crate) fn varied(&self, text: &str) -> anyhow::Result<Self> {
        let words: Words = text.parse()?;
        let algorithm = words.algorithm.unwrap_or(self.algorithm);
        let takes_burst = matches!(algorithm.name, "token_bucket" | "gcra" | "leaky_bucket");
        let quota = match (words.quota, words.burst) {
            (Some(quota), Some(burst)) => quota.burst(burst),
            (Some(quota), None) => quota,
            (None, Some(burst)) => self.quota.burst(burst),
            (None, None) if takes_burst => self.quota,
            (None, None) => Quota::per(self.quota.limit(), self.quota.period()),
        };
        let is_own = words.quota.is_some() || words.burst.is_some();
        let has_burst = if is_own {
            words.burst.is_some()
        } else {
            self.has_burst && takes_burst
        };
        let spec = Self {
            algorithm,
            quota,
            has_burst,
        };
        drop(spec.limit("limit")?);
        Ok(spec)
    }

    /// The same with another number of units a period.
    pub(crate) fn with_limit(&self, limit: u64) -> Self {
        let quota = Quota::per(limit, self.quota.period());
        let quota = if self.has_burst {
            quota.burst(self.quota.capacity())
        } else {
            quota
        };
        Self { quota, ..*self }
    }

    /// Advice for a limit that denies too much at any size.
    pub(crate) fn advice_if_none_fits(&self) -> String {
        match self.has_burst {
            true => format!(
                "a burst larger than {}, or none, may help",
                self.quota.capacity()
            ),
            false => "a longer period may help".to_owned(),
        }
    }

    pub(crate) fn limit(&self, name: &str) -> anyhow::Result<Limit> {
        let quota = self.quota;
        Ok(match (self.algorithm.name, self.algorithm.sub_windows) {
            ("sliding_window", Some(number)) => Limit::sliding_window_with(name, quota, number)?,
            ("sliding_window", None) => Limit::sliding_window(name, quota)?,
            ("gcra", _) => Limit::gcra(name, quota)?,
            ("leaky_bucket", _) => Limit::leaky_bucket(name, quota)?,
            ("sliding_log", _) => Limit::sliding_log(name, quota)?,
            ("fixed_window", _) => Limit::fixed_window(name, quota)?,
            ("fixed_window_aligned", _) => Limit::fixed_window_aligned(name, quota)?,
            _ => Limit::token_bucket(name, quota)?,
        })
    }
}

impl std::fmt::Display for LimitSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.algorithm.name)?;
        if let Some(number) = self.algorithm.sub_windows {
            write!(f, "({number})")?;
        }
        let quota = self.quota;
        let period = match quota.period() {
            Period::Calendar(calendar) => calendar.to_string(),
            period => match period.fixed().unwrap_or_default() {
                SECOND => "s".to_owned(),
                MINUTE => "min".to_owned(),
                HOUR => "h".to_owned(),
                DAY => "day".to_owned(),
                length => exact(length),
            },
        };
        write!(f, " {}/{period}", quota.limit())?;
        if self.has_burst {
            write!(f, " burst {}", quota.capacity())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> LimitSpec {
        text.parse().unwrap()
    }

    #[test]
    fn quota_alone_is_a_token_bucket() {
        assert_eq!(spec("100/min"), spec("token_bucket 100/min"));
        assert_eq!(spec("10/s burst 20").quota, Quota::per_second(10).burst(20));
        assert_eq!(spec("gcra 100 / 1h 30min burst=7").quota.capacity(), 7);
    }

    #[test]
    fn quota_of_a_month_alone_is_a_fixed_window() {
        let month = "10000/month from 15 in Europe/Berlin";
        assert_eq!(spec(month), spec(&format!("fixed_window {month}")));
    }

    #[test]
    fn variation_has_what_it_leaves_out_of_the_first_limit() {
        let first = spec("10/s burst 20");
        assert_eq!(first.varied("50/min").unwrap(), spec("50/min"));
        assert_eq!(first.varied("gcra").unwrap(), spec("gcra 10/s burst 20"));
        assert_eq!(
            first.varied("sliding_log").unwrap(),
            spec("sliding_log 10/s")
        );
        assert_eq!(
            first.varied("sliding_window(5)").unwrap(),
            spec("sliding_window(5) 10/s")
        );
        assert_eq!(first.varied("burst 5").unwrap(), spec("10/s burst 5"));
    }

    #[test]
    fn burst_that_was_written_stays_when_the_limit_changes() {
        assert_eq!(
            spec("100/min burst 100").with_limit(50),
            spec("50/min burst 100")
        );
        assert_eq!(spec("100/min").with_limit(50), spec("50/min"));
    }

    #[test]
    fn limit_that_makes_no_sense_is_an_error_that_says_why() {
        for (text, why) in [
            ("", "no quota"),
            ("gcra", "no quota"),
            ("100", "no slash"),
            ("100/parsec", "unknown unit"),
            (
                "bucket 100/min",
                "`bucket` is no algorithm; use token_bucket, gcra",
            ),
            ("sliding_window(x) 1/s", "sub-windows"),
            ("sliding_window(101) 1/s", "100"),
            ("sliding_log 1/s burst 5", "has no burst"),
            ("1/s burst many", "not a whole number"),
            ("0/s", "0"),
        ] {
            let error = format!("{:#}", text.parse::<LimitSpec>().unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn limit_is_written_so_that_it_can_be_read_again() {
        for text in [
            "token_bucket 100/min",
            "gcra 10/s burst 20",
            "sliding_window(7) 5/15m",
            "sliding_log 1/h",
            "fixed_window_aligned 7/day",
            "leaky_bucket 3/1h 30m",
            "token_bucket 1000/31d",
            "token_bucket 1000/365d 6h",
            "fixed_window 10000/month from 15 in Europe/Berlin",
            "fixed_window 5/day in UTC",
        ] {
            assert_eq!(spec(text).to_string(), text);
        }
    }
}
