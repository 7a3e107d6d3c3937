//! The limits that services have noted, and those of one name with two quotas.

use std::collections::BTreeMap;

use super::Findings;
use crate::output::counted;
use crate::redis::servers::Server;

/// The quotas by `kind:name`, each with the times in s when it was first and last used: what
/// `scripts/quotas.lua` writes.
type Notes = BTreeMap<String, BTreeMap<String, [f64; 2]>>;

/// A quota that was noted longer ago, in s, is used no more.
const FORGOTTEN: f64 = 150.0;

/// Two quotas that were used for as long, in s, are not those of a deployment.
const LONG: f64 = 600.0;

/// Reports limits of one name with two quotas. Services note theirs once a minute, if they register
/// them.
pub(super) async fn examine(
    server: &mut Server,
    prefix: &str,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let key = format!("{prefix}:limits");
    let Ok(value) = server.ask::<String>(&["GETRANGE", &key, "0", "-1"]).await else {
        // Another node of a cluster has it, or it is none of ours.
        return Ok(());
    };
    let Ok(notes) = serde_json::from_str::<Notes>(&value) else {
        return Ok(());
    };
    let now = server.now(prefix).await? as f64 / 1e6;
    let mut in_use = 0;
    let mut has_two = false;
    for (name, quotas) in notes {
        let mut quotas: Vec<_> = quotas
            .into_iter()
            .filter(|(_, [_, last])| now - last <= FORGOTTEN)
            .collect();
        quotas.sort_by(|(_, [one, _]), (_, [other, _])| one.total_cmp(other));
        in_use += usize::from(!quotas.is_empty());
        if let [(old, _), (new, [since, _]), ..] = &*quotas {
            has_two = true;
            report(&name, old, new, now - since, findings);
        }
    }
    if in_use > 0 && !has_two {
        let found = counted(&in_use.to_string(), "limit");
        findings.good("limits", format!("{found} in use, each with one quota"));
    }
    Ok(())
}

fn report(name: &str, old: &str, new: &str, seconds: f64, findings: &mut Findings) {
    let limit = name.split_once(':').map_or(name, |(_, name)| name);
    let minutes = (seconds / 60.0).floor();
    let found = format!("`{limit}` has two quotas for {minutes} min: {old}, and {new}");
    if seconds >= LONG {
        let advice = "both count on the same budgets: give one of the two services another name of \
                      the limit, or another prefix";
        findings.problem("limits", found, advice);
    } else {
        let advice = "while a deployment changes it, that is right; otherwise two services share \
                      budgets: ask again in ten minutes";
        findings.advice("limits", found, advice);
    }
}
