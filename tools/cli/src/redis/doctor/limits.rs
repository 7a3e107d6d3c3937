//! The limits that services have noted, and those of one name with two quotas.

use super::Findings;
use crate::output::counted;
use crate::redis::noted::{self, FORGOTTEN, SEVERAL};
use crate::redis::servers::Server;

/// Two quotas that were used for as long, in s, are hardly those of a deployment. As in the script.
const LONG: f64 = 3_600.0;

/// Reports limits of one name with two quotas. Services note theirs once a minute.
pub(super) async fn examine(
    server: &mut Server,
    prefix: &str,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let Some(notes) = noted::read(server, prefix).await? else {
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
        if quotas.iter().any(|(quota, _)| quota == SEVERAL) {
            continue;
        }
        if let [(old, _), others @ ..] = &*quotas {
            for (new, [since, _]) in others {
                has_two = true;
                report(&name, old, new, now - since, findings);
            }
        }
    }
    if in_use == 0 {
        not_noted(prefix, findings);
    } else if !has_two {
        let found = counted(&in_use.to_string(), "limit");
        findings.good("limits", format!("{found} in use, none with two quotas"));
    }
    Ok(())
}

fn not_noted(prefix: &str, findings: &mut Findings) {
    let found = format!("no service notes limits under the prefix `{prefix}`");
    let advice = "if services run, check --prefix; each notes its limits five seconds after its \
                  first check";
    findings.advice("limits", found, advice);
}

fn report(name: &str, old: &str, new: &str, seconds: f64, findings: &mut Findings) {
    let limit = name.split_once(':').map_or(name, |(_, name)| name);
    let minutes = (seconds / 60.0).floor();
    let found = format!("`{limit}` has two quotas for {minutes} min: {old}, and {new}");
    if seconds >= LONG {
        let advice = "both count on the same budgets: give one of the two services another name of \
                      the limit, or another prefix";
        findings.advice("limits", found, advice);
    } else {
        let advice = "a deployment that changes a quota takes a while; if two services share the \
                      budgets, give one of them another name of the limit, or another prefix";
        findings.advice("limits", found, advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_script() {
        let script = include_str!("../../../../../scripts/quotas.lua");
        let times = format!("LONG, FORGOTTEN, KEPT_MS = {LONG}, {FORGOTTEN},");
        assert!(script.contains(&times), "{times}");
    }
}
