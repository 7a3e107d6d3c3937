//! A table of the limits that apply to each route.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use http::Method;

use super::Version;
use super::pattern::{Pattern, RequestRoute};
use super::version::CompiledLimit;

/// All methods or paths that the configuration does not name.
const OTHERS: &str = "*";

/// The widest column, in characters. A longer text stands out of it, because `format!` panics at a
/// width of 65,536.
const WIDEST: usize = 120;

impl Version {
    /// A method, a path, and the limits that apply there, for each path, and for each method to
    /// which other limits apply there.
    fn rows(&self) -> Vec<(&str, &str, Vec<&CompiledLimit>)> {
        let patterns = || {
            self.limits
                .iter()
                .flat_map(|applied| applied.matches.iter().chain(&applied.except))
        };
        let methods: BTreeSet<_> = patterns()
            .flat_map(Pattern::methods)
            .map(Method::as_str)
            .collect();
        let paths: BTreeSet<_> = patterns().filter_map(Pattern::path).collect();
        let mut rows = Vec::new();
        for path in paths.into_iter().chain([OTHERS]) {
            let of_others = self.applied_at(OTHERS, path);
            let names = |limits: &[&CompiledLimit]| {
                limits
                    .iter()
                    .map(|applied| applied.limit().name().to_owned())
                    .collect()
            };
            let names_of_others: Vec<String> = names(&of_others);
            for &method in &methods {
                let applied = self.applied_at(method, path);
                if names(&applied) != names_of_others {
                    rows.push((method, path, applied));
                }
            }
            rows.push((OTHERS, path, of_others));
        }
        rows
    }

    fn applied_at(&self, method: &str, path: &str) -> Vec<&CompiledLimit> {
        // `*` is a method that no limit has.
        let method = Cow::Owned(Method::from_bytes(method.as_bytes()).unwrap_or_default());
        let route = RequestRoute::new(method, Some(path), path);
        self.limits_at(&route).collect()
    }
}

impl CompiledLimit {
    /// The quota in words, and the number of plans.
    pub(super) fn quota(&self) -> String {
        let limit = self.limit();
        match self.plans.as_ref().map_or(0, |plans| plans.outcomes.len()) {
            0 => limit.to_string(),
            1 => format!("{limit}, and 1 plan"),
            plans => format!("{limit}, and {plans} plans"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![["METHOD", "PATH", "LIMIT", "KEY", "QUOTA"].map(str::to_owned)];
        for (method, path, applied) in self.rows() {
            let mut route = [method.to_owned(), path.to_owned()];
            if applied.is_empty() {
                let [method, path] = std::mem::take(&mut route);
                lines.push([
                    method,
                    path,
                    "none".to_owned(),
                    String::new(),
                    String::new(),
                ]);
            }
            for limit in applied {
                // The route stands in its first line.
                let [method, path] = std::mem::take(&mut route);
                let name = limit.limit().name().to_owned();
                lines.push([method, path, name, limit.key_name.clone(), limit.quota()]);
            }
        }
        let width = |column: usize| {
            let longest = lines.iter().map(|line| line[column].chars().count()).max();
            longest.unwrap_or(0).min(WIDEST)
        };
        let [w0, w1, w2, w3] = [width(0), width(1), width(2), width(3)];
        for (number, [method, path, limit, key, quota]) in lines.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            let line = format!("{method:w0$}  {path:w1$}  {limit:w2$}  {key:w3$}  {quota}");
            f.write_str(line.trim_end())?;
        }
        Ok(())
    }
}
