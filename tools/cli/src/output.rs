//! Standard output and standard error, either of which may be closed: `tollgate keys | head`.

use std::io::{self, ErrorKind, Write, stderr, stdout};

use serde::Serialize;

/// The longest text of a client that is shown, in characters. The keys of the library are shorter.
const LONGEST: usize = 200;

/// A text of a client, of a file or of Redis, in which control and format characters are escaped: a
/// terminal would obey them, or write from right to left.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::new();
    for it in text.chars() {
        if is_seen(it) {
            shown.push(it)
        } else {
            shown.extend(it.escape_unicode())
        }
    }
    shown
}

/// JSON with the same characters escaped, as JSON does it. They are in its strings only.
pub(crate) fn json<T: Serialize>(value: &T, is_pretty: bool) -> serde_json::Result<String> {
    let text = match is_pretty {
        true => serde_json::to_string_pretty(value)?,
        false => serde_json::to_string(value)?,
    };
    let mut shown = String::new();
    for it in text.chars() {
        if is_seen(it) || it == '\n' {
            shown.push(it);
            continue;
        }
        for unit in it.encode_utf16(&mut [0; 2]) {
            shown.push_str(&format!("\\u{unit:04x}"));
        }
    }
    Ok(shown)
}

/// The printable beginning of a text that may be of any length.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => printable(&text[..end]) + "…",
        None => printable(text),
    }
}

fn is_seen(it: char) -> bool {
    let is_format = matches!(
        it,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    !it.is_control() && !is_format
}

/// Prints a text and the end of the line. A reader that has closed the pipe is no error: the exit
/// code is that of the command.
pub(crate) fn print(text: &str) -> io::Result<()> {
    print_to_reader(text).map(drop)
}

/// The same. Returns whether the reader is still there.
pub(crate) fn print_to_reader(text: &str) -> io::Result<bool> {
    match writeln!(stdout(), "{text}").and_then(|()| stdout().flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true),
    }
}

/// Writes a note to standard error.
pub(crate) fn note(text: &str) {
    // A closed standard error does not stop the command.
    let _ = writeln!(stderr(), "{text}");
}

/// An error with its causes. Their texts may come from a server, and may repeat each other.
pub(crate) fn explained(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{cause}");
        }
    }
    printable_lines(&text)
}

/// A printable name, in backticks.
pub(crate) fn shown(text: &str) -> String {
    format!("`{}`", printable(text))
}

/// A printable text of several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// `1 line`, `2 lines`.
pub(crate) fn counted(number: &str, what: &str) -> String {
    format!("{number} {what}{}", if number == "1" { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn characters_that_a_terminal_obeys_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\u{a}c");
        assert_eq!(
            printable("x|\u{202e}y\u{200b}\u{61c}"),
            "x|\\u{202e}y\\u{200b}\\u{61c}"
        );
        assert_eq!(printable("alice@example.com é"), "alice@example.com é");
    }

    #[test]
    fn json_escapes_them_too_and_has_the_same_meaning() {
        let text = "x|\u{202e}y\u{e0001}\u{1b}\n\"é";
        for is_pretty in [false, true] {
            let shown = json(&[text], is_pretty).unwrap();
            assert!(
                shown.contains("\\u202e") && shown.contains("\\udb40\\udc01"),
                "{shown}"
            );
            assert!(shown.chars().all(|it| is_seen(it) || it == '\n'), "{shown}");
            assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [text]);
        }
    }

    #[test]
    fn long_texts_end_with_a_mark() {
        assert_eq!(shortened(&"é".repeat(LONGEST)), "é".repeat(LONGEST));
        assert_eq!(
            shortened(&"é".repeat(500)),
            format!("{}…", "é".repeat(LONGEST))
        );
    }

    #[test]
    fn error_says_each_cause_once() {
        let error = anyhow!("refused")
            .context("cannot connect: refused")
            .context("h:1");
        assert_eq!(explained(&error), "h:1: cannot connect: refused");
        assert_eq!(
            explained(&anyhow!("-ERR \u{1b}[2J\nline")),
            "-ERR \\u{1b}[2J\nline"
        );
    }
}
