//! Parts of lines that are no JSON.

use std::borrow::Cow;

/// Takes words, brackets and quotes off the front of a line.
pub(super) struct Parts<'a>(&'a str);

impl<'a> Parts<'a> {
    pub(super) fn of(line: &'a str) -> Self {
        Self(line)
    }

    /// The next word.
    pub(super) fn word(&mut self) -> Result<&'a str, String> {
        let text = self.0.trim_start();
        let end = text.find(' ').unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.0 = rest;
        if word.is_empty() {
            Err("the line ends early".to_owned())
        } else {
            Ok(word)
        }
    }

    /// What is in the next brackets, and what stands before them.
    pub(super) fn bracketed(&mut self) -> Result<(&'a str, &'a str), String> {
        let missing = || "no time in brackets".to_owned();
        let (before, rest) = self.0.split_once('[').ok_or_else(missing)?;
        let (inside, rest) = rest.split_once(']').ok_or_else(missing)?;
        self.0 = rest;
        Ok((before.trim(), inside))
    }

    /// What is in the next quotes, in which `\` escapes a character.
    pub(super) fn quoted(&mut self) -> Result<&'a str, String> {
        let missing = || "no text in quotes".to_owned();
        let text = self.0.trim_start().strip_prefix('"').ok_or_else(missing)?;
        let mut is_escaped = false;
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                b'"' if !is_escaped => {
                    self.0 = &text[at + 1..];
                    return Ok(&text[..at]);
                }
                _ => is_escaped = byte == b'\\' && !is_escaped,
            }
        }
        Err(missing())
    }
}

/// The method and the target of `GET /path HTTP/1.1`. A line that is no request has none.
pub(super) fn request_line(line: &str) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    let mut words = line.split(' ');
    match (words.next(), words.next()) {
        (Some(method), Some(target)) => (Some(method.into()), Some(target.into())),
        _ => (None, None),
    }
}

/// `-` stands for nothing.
pub(super) fn given(text: &str) -> Option<Cow<'_, str>> {
    (!text.is_empty() && text != "-").then_some(text.into())
}
