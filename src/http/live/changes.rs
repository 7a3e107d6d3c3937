//! The changes of a new version of a configuration, for operators.

use super::Version;
use super::version::CompiledLimit;
use crate::configuration::LimitConfig;

impl Version {
    /// The limits that another version adds, removes and changes, each with what it allows.
    pub(super) fn changes_to(&self, after: &Self) -> [String; 3] {
        let mut added = Vec::new();
        let mut removed = Vec::new();
        let mut changed = Vec::new();
        for (limit, applied) in self.described() {
            let name = &limit.name;
            let text = applied.quota();
            match after.described().find(|(other, _)| other.name == *name) {
                None => removed.push(format!("{name} ({text})")),
                Some((other, _)) if other == limit => {}
                Some((other, applied)) => {
                    let now = applied.quota();
                    let quota = if now == text {
                        text
                    } else {
                        format!("{text}, now {now}")
                    };
                    let mut fields = limit.changed_fields(other);
                    // The text says them.
                    fields.retain(|field| !matches!(field.as_str(), "quota" | "limit"));
                    let fields = match &*fields {
                        [] => String::new(),
                        fields => format!("; changed: {}", fields.join(", ")),
                    };
                    changed.push(format!("{name} ({quota}{fields})"));
                }
            }
        }
        for (limit, applied) in after.described() {
            if self.described().all(|(other, _)| other.name != limit.name) {
                added.push(format!("{} ({})", limit.name, applied.quota()));
            }
        }
        [added, removed, changed].map(|limits| limits.join(", "))
    }

    /// The limits of the file, and what became of them.
    fn described(&self) -> impl Iterator<Item = (&LimitConfig, &CompiledLimit)> {
        self.config.limits.iter().zip(&self.limits)
    }
}
