//! The script that decides, and its name on the server.

use std::fmt::Write;
use std::sync::LazyLock;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../scripts/", $name, ".lua")))),*]
    };
}

/// Where a call begins.
const MAIN: (&str, &str) = ("main", include_str!("../../../scripts/main.lua"));

/// The files to include, by name. To add an algorithm, add its two files here: `name` and
/// `name_budget`. A call searches the list in order, so the most used files come first.
const INCLUDED: &[(&str, &str)] = files![
    "bucket",
    "stored",
    "fixed_window",
    "sliding_window",
    "sliding_log",
    "sliding_log_format",
    "batch",
    "slow_path",
    "bucket_budget",
    "fixed_window_budget",
    "sliding_window_budget",
    "offences",
    "operator_block",
    "permits",
    "payment",
    "rotation",
    "sliding_log_budget",
];

/// Runs every command that the script needs.
pub(super) const RIGHTS: &str = include_str!("../../../scripts/rights.lua");

/// Finds out whether an address is one server.
pub(super) const ONE_SERVER: &str = include_str!("../../../scripts/one_server.lua");

/// Notes the quotas that a process uses.
pub(super) const QUOTAS: &str = include_str!("../../../scripts/quotas.lua");

/// Adds to the keys that all processes denied most often.
pub(super) const DENIED: &str = include_str!("../../../scripts/denied.lua");

/// Sets and removes overrides.
#[cfg(feature = "config")]
pub(super) const OVERRIDES: &str = include_str!("../../../scripts/overrides.lua");

static SCRIPT: LazyLock<Script> = LazyLock::new(Script::join);

/// One script of all files.
struct Script {
    code: String,
    hash: String,
    /// The files in their order in the code, each with the number of lines before its first.
    files: Vec<(&'static str, usize)>,
}

impl Script {
    fn join() -> Self {
        let mut script = Self {
            code: String::new(),
            hash: String::new(),
            files: Vec::new(),
        };
        script.code += "local include\nfunction include(name, ...)\n";
        let mut keyword = "if";
        for &(name, text) in INCLUDED {
            // Writing to a string does not fail.
            let _ = writeln!(script.code, "{keyword} name == '{name}' then");
            script.push(name, text);
            keyword = "elseif";
        }
        script.code += "end\nend\n";
        script.push(MAIN.0, MAIN.1);
        script.hash = sha1_smol::Sha1::from(script.code.as_bytes())
            .digest()
            .to_string();
        script
    }

    fn push(&mut self, name: &'static str, text: &str) {
        self.files.push((name, self.code.lines().count()));
        self.code += text;
    }

    /// The file of a line of the code, and the line's number in the file.
    fn place_of(&self, line: usize) -> Option<(&'static str, usize)> {
        let (name, before) = self.files.iter().rfind(|(_, before)| *before < line)?;
        Some((name, line - before))
    }
}

/// The code, for `SCRIPT LOAD`.
pub(super) fn code() -> &'static str {
    &SCRIPT.code
}

/// The SHA-1 of the code, for `EVALSHA`.
pub(super) fn hash() -> &'static str {
    &SCRIPT.hash
}

/// An error's text with the files' own lines, such as `scripts/bucket.lua:57` for
/// `user_script:123`.
pub(super) fn with_files(text: &str) -> String {
    let mut parts = text.split("user_script:");
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part
            .find(|it: char| !it.is_ascii_digit())
            .unwrap_or(part.len());
        let (line, rest) = part.split_at(end);
        let place = line.parse().ok().and_then(|line| SCRIPT.place_of(line));
        let _ = match place {
            Some((name, line)) => write!(named, "scripts/{name}.lua:{line}{rest}"),
            None => write!(named, "user_script:{part}"),
        };
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_script_leads_to_file() {
        let mut found = 0;
        for (number, line) in code().lines().enumerate() {
            let Some((name, line_of_file)) = SCRIPT.place_of(number + 1) else {
                continue;
            };
            let files = INCLUDED.iter().chain([&MAIN]);
            let text = files
                .clone()
                .find(|file| file.0 == name)
                .map_or("", |file| file.1);
            match text.lines().nth(line_of_file - 1) {
                Some(of_file) => assert_eq!(of_file, line, "{name}:{line_of_file}"),
                None => assert!(line.starts_with("elseif") || line == "end", "{line}"),
            }
            found += 1;
        }
        assert!(found > 1_000, "{found} lines");
    }

    #[test]
    fn error_names_file_in_place_of_script() {
        let (name, before) = SCRIPT.files[1];
        let text = format!(
            "ERR user_script:{}: oops script: ab, on @user_script:1.",
            before + 7
        );
        let expected = format!("ERR scripts/{name}.lua:7: oops script: ab, on @user_script:1.");
        assert_eq!(with_files(&text), expected);
    }
}
