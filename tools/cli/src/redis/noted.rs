//! The limits that running services have noted in Redis, with their quotas.

use std::collections::BTreeMap;

use super::servers::Server;
use crate::limit::LimitSpec;

/// The quotas by `kind:name`, each with the times in s when it was first and last used: what
/// `scripts/quotas.lua` writes.
pub(super) type Notes = BTreeMap<String, BTreeMap<String, [f64; 2]>>;

/// The note of a name whose quotas a service cannot compare, such as those of plans that a closure
/// chooses: as the library writes it.
pub(super) const SEVERAL: &str = "several";

/// A quota that was noted longer ago, in s, is not used any more. As in the script.
pub(super) const FORGOTTEN: f64 = 150.0;

/// The notes of a server. `None` if there are none. A value of another program counts as empty.
pub(super) async fn read(server: &mut Server, prefix: &str) -> anyhow::Result<Option<Notes>> {
    let noted = server.text_at(&format!("{prefix}:limits")).await?;
    Ok(noted.map(|text| serde_json::from_str(&text).unwrap_or_default()))
}

/// A limit, as its quota was noted: `100 per 1m, burst 20 (gcra)`. `None` if it was not one quota.
pub(super) fn limit(noted: &str) -> Option<LimitSpec> {
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

    #[test]
    fn limits_are_those_that_services_note() {
        for (noted, text) in [
            ("100 per 1m, burst 20 (gcra)", "gcra 100/min burst 20"),
            ("5 per 15m (sliding_window(6))", "sliding_window(6) 5/15m"),
            (
                "9 per 1d (fixed_window_aligned)",
                "fixed_window_aligned 9/day",
            ),
            (
                "10000 per month from 15 in Europe/Berlin (fixed_window)",
                "fixed_window 10000/month from 15 in Europe/Berlin",
            ),
        ] {
            assert_eq!(limit(noted).unwrap(), text.parse().unwrap(), "{noted}");
        }
        for other in [SEVERAL, "3 at once (concurrency)", "", "10 per (gcra)"] {
            assert_eq!(limit(other), None, "{other}");
        }
    }

    #[test]
    fn several_quotas_are_noted_as_the_library_does() {
        let library = include_str!("../../../../src/store/redis/notes/sample.rs");
        assert!(library.contains(&format!("SEVERAL: &str = {SEVERAL:?}")));
    }
}
