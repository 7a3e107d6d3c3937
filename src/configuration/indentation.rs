//! Wrong indentation in YAML. It makes another structure of the same lines, and the error of that
//! structure names what is missing there, not the line that is wrong.

use serde_json::{Map, Value};

/// The field at the top of a file.
const TOP: &str = "limits";

/// Which line is probably indented wrongly, in a text that was not read because of `error`.
pub(super) fn hint(text: &str, error: &str) -> Option<String> {
    if error.contains("mapping values are not allowed") {
        return Some("fields of one limit are indented equally".to_owned());
    }
    outside(text).or_else(|| without_content(&serde_saphyr::from_str(text).ok()?))
}

/// A field of a limit that is indented no further than the dash before its limit.
fn outside(text: &str) -> Option<String> {
    let dash = text
        .lines()
        .find(|line| line.trim_start().starts_with("- "))?;
    let mut lines = text.lines().enumerate();
    let (index, name) = lines.find_map(|(index, line)| {
        let name = field_of(line).filter(|name| *name != TOP)?;
        (indentation(line) <= indentation(dash)).then_some((index, name))
    })?;
    Some(format!(
        "line {}: `{}` is outside of its limit: indent it like the limit's other fields",
        index.saturating_add(1),
        name.escape_debug()
    ))
}

/// A table without content, whose lines are indented like itself.
fn without_content(file: &Map<String, Value>) -> Option<String> {
    let limits = file.get(TOP)?.as_array()?.iter();
    let tables = limits.filter_map(Value::as_object).flat_map(|limit| {
        let plans = limit
            .get("plans")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        limit.iter().chain(plans)
    });
    let mut empty = tables.filter(|(_, value)| value.is_null());
    empty.next().map(|(name, _)| {
        format!(
            "`{}` is empty: indent what belongs to it further than its own line",
            name.escape_debug()
        )
    })
}

fn indentation(line: &str) -> usize {
    line.len().saturating_sub(line.trim_start().len())
}

/// The field that a line begins with, if it does.
fn field_of(line: &str) -> Option<&str> {
    let (name, _) = line.trim_start().split_once(':')?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    (!name.is_empty() && name.bytes().all(is_name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use crate::configuration::{Config, Format};

    fn error(lines: &[&str]) -> String {
        let text = lines.join("\n");
        Config::parse("limits.yaml", &text, Format::Yaml)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn field_that_left_its_limit_is_named_with_its_line() {
        let error = error(&[
            "limits:",
            "  - name: api",
            "    algorithm: gcra",
            "    quota: 10/s",
            "  key: peer_ip",
        ]);
        assert!(
            error.contains("missing field `key`; line 5: `key` is outside of its limit"),
            "{error}"
        );
    }

    #[test]
    fn first_of_several_fields_outside_is_named() {
        let lines = [
            "limits:",
            "- name: api",
            "algorithm: gcra",
            "quota: 10/s",
            "key: peer_ip",
        ];
        let error = error(&lines);
        assert!(
            error.contains("line 3: `algorithm` is outside of its limit"),
            "{error}"
        );
    }

    #[test]
    fn table_whose_lines_are_not_indented_further_is_named() {
        let limit = [
            "limits:",
            "- name: api",
            "  algorithm: gcra",
            "  quota: 10/s",
            "  key: peer_ip",
        ];
        for (more, expected) in [
            (
                &["  plan: tier", "  plans:", "  pro:", "    quota: 50/s"][..],
                "`plans` is empty",
            ),
            (
                &["  plan: tier", "  plans:", "    pro:", "    quota: 50/s"][..],
                "`pro` is empty",
            ),
            (
                &["  block:", "  after: 20/5m", "  for: 10m"][..],
                "`block` is empty",
            ),
        ] {
            let error = error(&[&limit[..], more].concat());
            assert!(
                error.contains(expected) && error.contains("further than its own line"),
                "{error}"
            );
        }
    }

    #[test]
    fn fields_that_are_indented_differently_are_named_as_that() {
        let error = error(&[
            "limits:",
            "  - name: api",
            "      algorithm: gcra",
            "      quota: 10/s",
        ]);
        assert!(
            error.contains("fields of one limit are indented equally"),
            "{error}"
        );
    }

    #[test]
    fn other_error_has_no_hint() {
        let lines = [
            "limits:",
            "- name: api",
            "  algorithm: gcra",
            "  quota: 10/s",
            "  kee: peer_ip",
        ];
        let error = error(&lines);
        assert!(
            error.contains("kee") && !error.contains("indent"),
            "{error}"
        );
    }
}
