//! The limits that running services have noted in Redis, with their quotas.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use tollgate::Limit;
use tollgate::limit::Period;

use super::limiter::blockable;
use super::servers::Server;
use crate::limit::LimitSpec;

/// The quotas by `kind:name`, each with the times in s when it was first and last used: what
/// `scripts/quotas.lua` writes.
pub(super) type Notes = BTreeMap<String, BTreeMap<String, [f64; 2]>>;

/// The note of a name whose quotas a service cannot compare, such as those of plans that a closure
/// chooses: as the library writes it.
pub(super) const SEVERAL: &str = "several";

/// The most bytes of a kind and a name. The names of limits are shorter.
const LONGEST_NAME: usize = 256;

/// A quota that was noted longer ago, in s, is not used any more. As in the script.
pub(super) const FORGOTTEN: f64 = 150.0;

/// A limit that running services use.
#[derive(Clone, Debug)]
pub(super) struct NotedLimit {
    /// The letter of its budgets in the keys of Redis.
    pub(super) kind: String,
    pub(super) name: String,
    /// The note of the quota that came last into use, or of several that belong together, such as
    /// those of plans.
    note: String,
    /// `true` if another note is also in use, such as during a deployment.
    pub(super) has_other_note: bool,
}

/// A quota of a limit, in words and to be looked at.
#[derive(Clone, Debug)]
pub(super) struct NotedQuota {
    pub(super) words: String,
    pub(super) limit: Limit,
}

/// The reason for which a note has no quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unclear {
    /// Services have several quotas, and cannot say which.
    Several,
    Malformed,
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Several => "which has several quotas",
            Self::Malformed => "whose note is malformed",
        })
    }
}

/// The notes of a server. `None` if there are none. A value or a note of another program does not
/// count.
pub(super) async fn read(server: &mut Server, prefix: &str) -> anyhow::Result<Option<Notes>> {
    let noted = server.text_at(&format!("{prefix}:limits")).await?;
    Ok(noted.map(|text| parse_notes(&text)))
}

fn parse_notes(text: &str) -> Notes {
    let all: BTreeMap<String, Value> = serde_json::from_str(text).unwrap_or_default();
    let notes = all
        .into_iter()
        .filter(|(name, _)| name.len() <= LONGEST_NAME);
    notes
        .filter_map(|(name, quotas)| Some((name, serde_json::from_value(quotas).ok()?)))
        .collect()
}

/// The limits in use that a server has the notes of.
pub(super) async fn limits(server: &mut Server, prefix: &str) -> anyhow::Result<Vec<NotedLimit>> {
    let Some(notes) = read(server, prefix).await?.filter(|it| !it.is_empty()) else {
        return Ok(Vec::new());
    };
    let now = server.now(prefix).await? as f64 / 1e6;
    Ok(in_use(notes, now))
}

fn in_use(notes: Notes, now: f64) -> Vec<NotedLimit> {
    let in_use = notes.into_iter().filter_map(|(kind_and_name, quotas)| {
        let (kind, name) = kind_and_name.split_once(':')?;
        let used: Vec<_> = quotas
            .into_iter()
            .filter(|(_, [_, last])| now - last <= FORGOTTEN)
            .collect();
        let newest = used
            .iter()
            .max_by(|(_, [one, _]), (_, [other, _])| one.total_cmp(other))?;
        Some(NotedLimit {
            kind: kind.to_owned(),
            name: name.to_owned(),
            note: newest.0.clone(),
            has_other_note: used.len() > 1,
        })
    });
    in_use.collect()
}

impl NotedLimit {
    pub(super) fn is_concurrency(&self) -> bool {
        self.kind == "c"
    }

    /// The quotas of the limit: one, or those of its plans as well.
    pub(super) fn quotas(&self) -> Result<Vec<NotedQuota>, Unclear> {
        if self.note == SEVERAL {
            return Err(Unclear::Several);
        }
        let quotas = self.note.split("; ").map(|words| {
            let limit = blockable(&parse(words)?, &self.name).ok()?;
            Some(NotedQuota {
                words: words.to_owned(),
                limit,
            })
        });
        quotas.collect::<Option<_>>().ok_or(Unclear::Malformed)
    }

    /// Returns whether a quota counts per this unit of the calendar.
    pub(super) fn counts_per(&self, unit: &str) -> bool {
        let quotas = self.quotas().unwrap_or_default();
        quotas.iter().any(|it| match it.limit.quota().period() {
            Period::Calendar(calendar) => calendar.unit() == unit,
            _ => false,
        })
    }
}

/// Parses a noted quota: `100 per 1m, burst 20 (gcra)`.
fn parse(noted: &str) -> Option<LimitSpec> {
    let (quota, algorithm) = noted.split_once(" (")?;
    let algorithm = algorithm.strip_suffix(')')?;
    let quota = quota
        .replacen(" per ", "/", 1)
        .replace(", burst ", " burst ");
    format!("{algorithm} {quota}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits_of(json: &str, now: f64) -> Vec<String> {
        let limits = in_use(parse_notes(json), now);
        let shown = limits.iter().map(|it| {
            let quotas = it.quotas().map(|quotas| {
                let quotas = quotas.iter().map(|it| it.limit.quota().to_string());
                quotas.collect::<Vec<_>>().join(" or ")
            });
            let others = if it.has_other_note { ", others" } else { "" };
            let quotas = quotas.unwrap_or_else(|unclear| unclear.to_string());
            format!("{} {quotas}{others}", it.name)
        });
        shown.collect()
    }

    #[test]
    fn newest_quota_in_use_is_the_limit_and_malformed_notes_are_none() {
        let notes = r#"{
            "b:api": {"5 per 1m (gcra)": [10, 900], "9 per 1m (gcra)": [880, 990]},
            "w:api": {"7 per 1h (fixed_window)": [10, 990], "8 per 1h (fixed_window)": [5, 700]},
            "b:gone": {"5 per 1m (gcra)": [10, 700]},
            "b:plans": {"5 per 1m (gcra); 9 per 1m (gcra)": [10, 990]},
            "b:chosen": {"several": [10, 990]},
            "t:": {"5 per 1m (gcra)": [10, 990]},
            "b:a\"b": {"5 per 1m (gcra)": [10, 990]},
            "b:odd": {"5 per (": [10, 990]},
            "b:other": 5, "b:text": {"5 per 1m (gcra)": "now"},
            "api": {"5 per 1m (gcra)": [10, 990]}
        }"#;
        assert_eq!(
            limits_of(notes, 1_000.0),
            [
                "a\"b whose note is malformed",
                "api 9 per 1m, others",
                "chosen which has several quotas",
                "odd whose note is malformed",
                "plans 5 per 1m or 9 per 1m",
                " whose note is malformed",
                "api 7 per 1h",
            ]
        );
    }

    #[test]
    fn several_quotas_are_noted_as_the_library_does() {
        let library = include_str!("../../../../src/store/redis/notes/sample.rs");
        assert!(library.contains(&format!("SEVERAL: &str = {SEVERAL:?}")));
        assert_eq!(parse(SEVERAL), None);
    }
}
