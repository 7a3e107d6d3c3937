//! The wrapping that a platform adds to each line of a server.

use std::borrow::Cow;

use serde::Deserialize;

/// A kind of lines within which a server's lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrapping {
    /// Docker's `json-file`: `{"log":"...\n","stream":"stdout","time":"..."}`.
    Docker,
    /// Kubernetes (CRI): `2025-10-10T13:55:36.1Z stdout F ...`.
    Kubernetes,
    /// RFC 5424 or RFC 3164, with or without a priority: `Oct 10 13:55:36 host nginx[7]: ...`.
    Syslog,
    /// `docker compose logs`: `web-1  | ...`.
    Compose,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DockerLine<'a> {
    #[serde(borrow)]
    log: Cow<'a, str>,
    #[serde(rename = "stream")]
    _stream: Cow<'a, str>,
    #[serde(rename = "time")]
    _time: Cow<'a, str>,
    #[serde(rename = "attrs")]
    _attributes: Option<serde::de::IgnoredAny>,
}

impl Wrapping {
    const ALL: [Self; 4] = [Self::Docker, Self::Kubernetes, Self::Syslog, Self::Compose];

    /// The wrapping of most of these lines.
    pub(super) fn recognize(lines: &[&str]) -> Option<Self> {
        Self::ALL.into_iter().find(|it| {
            let wrapped = lines.iter().filter(|line| it.unwrap(line).is_some());
            let wrapped = wrapped.count();
            wrapped > 0 && wrapped * 2 >= lines.len()
        })
    }

    /// As a report names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Docker => "lines of Docker",
            Self::Kubernetes => "lines of Kubernetes",
            Self::Syslog => "lines of syslog",
            Self::Compose => "lines of docker compose",
        }
    }

    /// The line within.
    pub(super) fn unwrap(self, line: &str) -> Option<Cow<'_, str>> {
        match self {
            Self::Docker => {
                let line: DockerLine<'_> = serde_json::from_str(line).ok()?;
                Some(line.log.trim_end().to_owned().into())
            }
            Self::Kubernetes => {
                let mut words = line.splitn(4, ' ');
                let time = words.next()?.parse::<jiff::Timestamp>();
                let stream = words.next()?;
                // A full line, or a part of a long one, which is no request.
                let is_tag = matches!(words.next()?, "F" | "P");
                let is_wrapped = time.is_ok() && matches!(stream, "stdout" | "stderr") && is_tag;
                words.next().filter(|_| is_wrapped).map(Into::into)
            }
            Self::Syslog => syslog(line).map(Into::into),
            Self::Compose => {
                let (service, line) = line.split_once('|')?;
                let service = service.trim_end();
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
                let is_wrapped = !service.is_empty() && service.bytes().all(is_name);
                is_wrapped.then(|| line.trim_start().into())
            }
        }
    }
}

/// The message of a line of syslog.
fn syslog(line: &str) -> Option<&str> {
    let rest = match line.strip_prefix('<') {
        Some(rest) => {
            let (priority, rest) = rest.split_once('>')?;
            let is_priority = priority.len() <= 3 && priority.parse::<u8>().is_ok();
            is_priority.then_some(rest)?
        }
        None => line,
    };
    // RFC 5424: version, time, host, program, process, message, structured data.
    if let Some(rest) = rest.strip_prefix("1 ") {
        let mut words = rest.splitn(6, ' ');
        words.next()?.parse::<jiff::Timestamp>().ok()?;
        let rest = words.nth(4)?;
        let message = match rest.strip_prefix('-') {
            Some(message) => message,
            None => after_elements(rest)?,
        };
        return Some(message.trim_start().trim_start_matches('\u{feff}'));
    }
    // RFC 3164, `Oct 10 13:55:36 host nginx[7]: ...`, or with a time as in RFC 3339.
    let (time, rest) = rest.split_once(' ')?;
    let rest = if time.parse::<jiff::Timestamp>().is_ok() {
        rest
    } else {
        let is_month = time.len() == 3 && time.bytes().all(|it| it.is_ascii_alphabetic());
        let (day, rest) = rest.trim_start().split_once(' ')?;
        let (clock, rest) = rest.split_once(' ')?;
        let is_time = is_month && day.parse::<u8>().is_ok() && clock.matches(':').count() == 2;
        is_time.then_some(rest)?
    };
    let (origin, message) = rest.split_once(": ")?;
    // A host and a program. nginx can be told to leave its host out.
    let is_origin = origin.split(' ').count() <= 2 && !origin.contains('"');
    is_origin.then_some(message)
}

/// The text after the elements of structured data, `[id name="value"]...`, in whose values a `\\`
/// escapes a character.
fn after_elements(data: &str) -> Option<&str> {
    let mut rest = data;
    while let Some(element) = rest.strip_prefix('[') {
        let (mut is_quoted, mut is_escaped) = (false, false);
        let end = element.bytes().position(|byte| {
            let escapes = is_quoted && byte == b'\\' && !is_escaped;
            is_quoted ^= byte == b'"' && !is_escaped;
            is_escaped = escapes;
            byte == b']' && !is_quoted
        })?;
        rest = &element[end + 1..];
    }
    (rest.len() < data.len()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"203.0.113.7 - - [10/Oct/2025:13:55:36 +0000] "GET /a: HTTP/1.1" 200 12"#;

    #[test]
    fn lines_of_each_platform_are_recognized_and_unwrapped() {
        let docker = serde_json::json!({
            "log": format!("{LINE}\n"), "stream": "stdout", "time": "2025-10-10T13:55:36.1Z",
        });
        for (wrapping, line) in [
            (Wrapping::Docker, docker.to_string()),
            (
                Wrapping::Kubernetes,
                format!("2025-10-10T13:55:36.123456789Z stdout F {LINE}"),
            ),
            (
                Wrapping::Kubernetes,
                format!("2025-10-10T13:55:36.123456789+02:00 stderr F {LINE}"),
            ),
            (
                Wrapping::Syslog,
                format!("<190>Oct  9 13:55:36 web1 nginx: {LINE}"),
            ),
            (
                Wrapping::Syslog,
                format!("Oct 10 13:55:36 web1 nginx[712]: {LINE}"),
            ),
            (
                Wrapping::Syslog,
                format!("2025-10-10T13:55:36.1+02:00 web1 nginx[712]: {LINE}"),
            ),
            (
                Wrapping::Syslog,
                format!("<34>1 2025-10-10T13:55:36.003Z web1 nginx 712 access - {LINE}"),
            ),
            (
                Wrapping::Syslog,
                format!(
                    "<34>1 2025-10-10T13:55:36.003Z web1 nginx 712 - \
                     [a@1 b=\"c] \\\"d\"][e@1] {LINE}"
                ),
            ),
            (Wrapping::Compose, format!("web-1   | {LINE}")),
        ] {
            assert_eq!(Wrapping::recognize(&[&line]), Some(wrapping), "{line}");
            assert_eq!(wrapping.unwrap(&line).as_deref(), Some(LINE), "{line}");
        }
    }

    #[test]
    fn lines_of_servers_are_not_wrapped() {
        for line in [
            LINE,
            r#"{"time":"2025-10-10T13:55:36Z","ip":"203.0.113.7","log":"x"}"#,
            r#"[2025-10-10T13:55:36.310Z] "GET /a|b HTTP/2" 204 - 154 0 226 100 "-" "-" "-" "-""#,
            r#"h2 2025-10-10T13:55:36.1Z app/lb 203.0.113.7:4 10.0.0.66:9000 0 0 0 200 200 5 2 "-""#,
            "2025-10-10T13:55:36.1Z GET /a 203.0.113.7",
            "",
            "|",
            "<34>1 ",
        ] {
            assert_eq!(Wrapping::recognize(&[line]), None, "{line}");
        }
    }
}
