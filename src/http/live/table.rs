//! A table of the limits that apply to each route.

use std::borrow::Cow;
use std::fmt;

use http::Method;

use super::InForce;
use super::in_force::Applied;
use super::pattern::{Pattern, Route};

/// No limit names this method, so it stands for all others.
const OTHER: &[u8] = b"OTHER-METHODS";

/// A route for which the configuration has a limit of its own, or all other routes.
struct Row<'a> {
    method: Option<&'a Method>,
    path: Option<&'a str>,
}

impl InForce {
    fn rows(&self) -> Vec<Row<'_>> {
        let patterns =
            self.limits.iter().flat_map(|limit| limit.matches.iter().chain(&limit.except));
        let mut rows: Vec<Row<'_>> = patterns.clone().flat_map(Row::of).collect();
        // A limit of a method on all routes applies to the routes that others name, too.
        let on_all_routes = patterns.filter(|pattern| pattern.path().is_none());
        let methods: Vec<_> = on_all_routes.flat_map(Pattern::methods).collect();
        let paths: Vec<_> = rows.iter().filter_map(|row| row.path).collect();
        for path in paths {
            rows.extend(
                methods.iter().map(|&method| Row { method: Some(method), path: Some(path) }),
            );
        }
        rows.push(Row { method: None, path: None });
        // Those of a method first, and all others last.
        rows.sort_by_key(|row| (row.path.is_none(), row.path, row.method.is_none(), row.name()));
        rows.dedup_by(|a, b| (a.path, a.method) == (b.path, b.method));
        rows
    }

    fn applied_to_row(&self, row: &Row<'_>) -> Vec<&Applied> {
        let other = Method::from_bytes(OTHER).unwrap_or_default();
        let method = Cow::Owned(row.method.unwrap_or(&other).clone());
        let path = row.path.unwrap_or("*");
        let route = Route { method, template: Some(path), sent: path, plain: Cow::Borrowed(path) };
        self.limits.iter().filter(|limit| limit.applies_to(&route)).collect()
    }
}

impl<'a> Row<'a> {
    fn of(pattern: &'a Pattern) -> Vec<Self> {
        let path = pattern.path();
        match pattern.methods() {
            [] => vec![Self { method: None, path }],
            methods => methods.iter().map(|method| Self { method: Some(method), path }).collect(),
        }
    }

    fn name(&self) -> &'a str {
        self.method.map_or("*", Method::as_str)
    }
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![["METHOD", "PATH", "LIMIT", "KEY", "QUOTA"].map(str::to_owned)];
        for row in self.rows() {
            let mut route = [row.name().to_owned(), row.path.unwrap_or("*").to_owned()];
            let applied = self.applied_to_row(&row);
            if applied.is_empty() {
                let [method, path] = std::mem::take(&mut route);
                lines.push([method, path, "none".to_owned(), String::new(), String::new()]);
            }
            for limit in applied {
                // The route stands in its first line.
                let [method, path] = std::mem::take(&mut route);
                let plans = limit.plans.as_ref().map_or(0, |plans| plans.limits.len());
                let plans = match plans {
                    0 => String::new(),
                    1 => ", and 1 plan".to_owned(),
                    plans => format!(", and {plans} plans"),
                };
                let quota = format!("{}{plans}", limit.limit());
                lines.push([
                    method,
                    path,
                    limit.limit().name().to_owned(),
                    limit.key_name.clone(),
                    quota,
                ]);
            }
        }
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; 4] = [width(0), width(1), width(2), width(3)];
        for (number, [method, path, limit, key, quota]) in lines.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            let [w0, w1, w2, w3] = widths;
            let line = format!("{method:w0$}  {path:w1$}  {limit:w2$}  {key:w3$}  {quota}");
            f.write_str(line.trim_end())?;
        }
        Ok(())
    }
}
