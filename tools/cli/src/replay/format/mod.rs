//! The formats of access logs.

mod alb;
mod combined;
mod envoy;
mod json;
mod line;
mod time;
mod wrapping;

use std::borrow::Cow;

use anyhow::bail;

pub(super) use self::json::names_of_fields;

use self::time::Times;
use self::wrapping::Wrapping;
use super::request::Request;
use crate::arguments::FormatName;
use crate::output::shortened;

/// A parser of lines.
pub(super) struct Format {
    name: FormatName,
    wrapping: Option<Wrapping>,
    times: Times,
}

/// From the most specific to the least.
const ALL: [FormatName; 5] = [
    FormatName::Envoy,
    FormatName::Alb,
    FormatName::Combined,
    FormatName::Caddy,
    FormatName::Json,
];

impl Format {
    fn new(name: FormatName, wrapping: Option<Wrapping>) -> Self {
        Self {
            name,
            wrapping,
            times: Times::default(),
        }
    }

    /// The wrapping of these lines, and the format within, unless it is given.
    pub(super) fn recognize(lines: &[String], name: Option<FormatName>) -> anyhow::Result<Self> {
        let lines: Vec<_> = lines
            .iter()
            .map(String::as_str)
            .filter(|it| !it.is_empty() && !it.starts_with('#'))
            .collect();
        let wrapping = Wrapping::recognize(&lines);
        if let Some(name) = name {
            return Ok(Self::new(name, wrapping));
        }
        let lines: Vec<_> = lines
            .iter()
            .filter_map(|line| wrapping.map_or(Some(Cow::Borrowed(*line)), |it| it.unwrap(line)))
            .collect();
        // Within lines of a platform is all that a container writes, as it starts for example.
        let fewest = match wrapping {
            Some(_) => 1,
            None => lines.len().div_ceil(2).max(1),
        };
        for name in ALL {
            let mut format = Self::new(name, wrapping);
            let parsed = lines.iter().filter(|line| format.parse(line).is_ok());
            if parsed.count() >= fewest {
                return Ok(format);
            }
        }
        let Some(first) = lines.first() else {
            bail!("the log is empty")
        };
        let mut tried = Vec::new();
        for name in ALL {
            if let Err(why) = Self::new(name, wrapping).parse(first) {
                tried.push(format!("\n  {}: {}", name_of(name), shortened(&why)));
            }
        }
        bail!(
            "the log has none of the known formats; its first line is `{}`; --format names one{}",
            shortened(first),
            tried.concat()
        )
    }

    /// `combined`, or `combined in lines of Docker`.
    pub(super) fn name(&self) -> String {
        match self.wrapping {
            Some(wrapping) => format!("{} in {}", name_of(self.name), wrapping.name()),
            None => name_of(self.name).to_owned(),
        }
    }

    /// The line of a server within a line of a platform.
    pub(super) fn unwrap<'a>(&self, line: &'a str) -> Option<Cow<'a, str>> {
        match self.wrapping {
            Some(wrapping) => wrapping.unwrap(line),
            None => Some(line.into()),
        }
    }

    /// Reads a line, or says why it cannot.
    pub(super) fn parse<'a>(&mut self, line: &'a str) -> Result<Request<'a>, String> {
        match self.name {
            FormatName::Combined => combined::parse(line, &mut self.times),
            FormatName::Envoy => envoy::parse(line, &mut self.times),
            FormatName::Alb => alb::parse(line, &mut self.times),
            FormatName::Caddy => json::caddy(line, &mut self.times),
            FormatName::Json => json::parse(line, &mut self.times),
        }
    }
}

fn name_of(name: FormatName) -> &'static str {
    match name {
        FormatName::Combined => "combined",
        FormatName::Caddy => "caddy",
        FormatName::Envoy => "envoy",
        FormatName::Alb => "alb",
        FormatName::Json => "json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::clients::Clients;

    const LINES: [(&str, &str, &str, &str); 20] = [
        (
            "combined",
            r#"203.0.113.7 - alice [10/Oct/2025:13:55:36 -0700] "GET /a?b=c HTTP/1.1" 200 2326 "https://x/" "curl/8 \"quoted\"""#,
            "203.0.113.7 alice GET /a",
            "2025-10-10T20:55:36Z",
        ),
        (
            "combined",
            r#"shop.example:443 203.0.113.7 - - [10/Oct/2025:13:55:36 +0000] "POST /pay HTTP/2.0" 201 12"#,
            "203.0.113.7 - POST /pay",
            "2025-10-10T13:55:36Z",
        ),
        (
            "combined",
            r#"203.0.113.7 - first last [10/Oct/2025:13:55:36 +0000] "-" 400 0"#,
            "203.0.113.7 first last - -",
            "2025-10-10T13:55:36Z",
        ),
        (
            "combined",
            r#"10.0.2.5 - - [10/Oct/2025:13:55:36 +0000] "GET /a HTTP/1.1" 200 12 "-" "curl/8" "6.6.6.6, 203.0.113.7, 10.0.1.9""#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:36Z",
        ),
        (
            "combined",
            r#"203.0.113.7 - - [10/Oct/2025:13:55:36 +0000] "GET /a HTTP/1.1" 200 12 "-" "curl/8" "0.002""#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:36Z",
        ),
        (
            "caddy",
            r#"{"ts":1646861401.5241024,"request":{"client_ip":"10.0.0.1","method":"GET","uri":"/a","headers":{"X-Forwarded-For":["6.6.6.6","203.0.113.7"]}}}"#,
            "203.0.113.7 - GET /a",
            "2022-03-09T21:30:01.524102Z",
        ),
        (
            "caddy",
            r#"{"level":"info","ts":1646861401.5241024,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.0.1","client_ip":"203.0.113.7","proto":"HTTP/2.0","method":"GET","host":"shop.example","uri":"/a?b=c","headers":{}},"user_id":"alice","duration":0.0009,"status":200}"#,
            "203.0.113.7 alice GET /a",
            "2022-03-09T21:30:01.523202Z",
        ),
        (
            "envoy",
            r#"[2025-10-10T13:55:36.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "203.0.113.7,10.0.35.28" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80""#,
            "203.0.113.7 - POST /api/v1/locations",
            "2025-10-10T13:55:36.31Z",
        ),
        (
            "envoy",
            r#"[2025-10-10T13:55:36.310Z] "GET /a?b=c HTTP/1.1" 200 - via_upstream - "-" 0 135 4 3 "203.0.113.7" "curl/8" "cc21d9b0" "shop:8000" "10.1.1.9:80" inbound|80|| 127.0.0.6:4 10.1.1.9:80 10.1.2.3:0 - default"#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:36.31Z",
        ),
        (
            "json",
            r#"{"time":null,"ts":"","timestamp":1760104536,"ip":"203.0.113.7","method":"GET","path":"/a"}"#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:36Z",
        ),
        (
            "alb",
            r#"h2 2025-10-10T13:55:36.186641Z app/lb/50dc6c495c0c9188 203.0.113.7:48160 10.0.0.66:9000 0.000 0.002 0.000 200 200 5 257 "GET https://shop.example:443/a?b=c HTTP/2.0" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:x "Root=1" "-" "-" 1 2025-10-10T13:55:36.184000Z "redirect" "-" "-" "-" "-" "-" "-""#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:36.184Z",
        ),
        (
            "json",
            r#"{"time":"2025-10-10T13:55:36.5+02:00","remote_addr":"203.0.113.7","remote_user":"alice","request":"GET /a?b=c HTTP/1.1","status":"200"}"#,
            "203.0.113.7 alice GET /a",
            "2025-10-10T11:55:36.5Z",
        ),
        (
            "json",
            r#"{"msec":"1760104536.250","http_x_forwarded_for":"203.0.113.7","remote_addr":"10.0.2.5","request_method":"GET","request_uri":"/a","request_time":"1.250"}"#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:35Z",
        ),
        (
            "json",
            r#"{"ClientAddr":"10.0.2.5:41000","ClientHost":"6.6.6.6, 203.0.113.7","RequestMethod":"GET","RequestPath":"/a","StartUTC":"2025-10-10T13:55:36.1Z","time":"2025-10-10T13:55:39Z"}"#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:36.1Z",
        ),
        (
            "json",
            r#"{"ClientAddr":"203.0.113.7:41000","ClientHost":"203.0.113.7","RequestMethod":"GET","RequestPath":"/a","StartUTC":"2025-10-10T13:55:36.1Z","time":"2025-10-10T13:55:39Z"}"#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:36.1Z",
        ),
        (
            "json",
            r#"{"time":1760104536,"client_ip":"6.6.6.6, 203.0.113.7, 10.0.0.1","method":"GET","path":"/a"}"#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:36Z",
        ),
        (
            "json",
            r#"{"time":1760104536,"remote_addr":"[fe80::1%eth0]:443","method":"GET","path":"/a"}"#,
            "fe80::1 - GET /a",
            "2025-10-10T13:55:36Z",
        ),
        (
            "combined",
            r#"6.6.6.6, 203.0.113.7, 10.0.0.1 - alice [10/Oct/2025:13:55:36 +0000] "GET /a HTTP/1.1" 200 12"#,
            "203.0.113.7 alice GET /a",
            "2025-10-10T13:55:36Z",
        ),
        (
            "combined",
            r#"6.6.6.6,203.0.113.7 - - [10/Oct/2025:13:55:36 +0000] "GET /a HTTP/1.1" 200 12 "-" "curl/8""#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:36Z",
        ),
        (
            "json",
            r#"{"@timestamp":1760104536250,"clientIp":"203.0.113.7","method":"GET","path":"/a"}"#,
            "203.0.113.7 - GET /a",
            "2025-10-10T13:55:36.25Z",
        ),
    ];

    #[test]
    fn lines_of_each_format_are_recognized_and_read() {
        for (name, line, parts, time) in LINES {
            let mut format = Format::recognize(&[line.to_owned()], None).unwrap();
            assert_eq!(format.name(), name, "{line}");
            let mut request = format.parse(line).unwrap();
            Clients::new(&[]).find(&mut request);
            let part = |part: Option<&str>| part.unwrap_or("-").to_owned();
            let ip = request.client_ip.map(|it| it.to_string());
            let found = [
                part(ip.as_deref()),
                part(request.user.as_deref()),
                part(request.method.as_deref()),
                part(request.path()),
            ];
            assert_eq!(found.join(" "), parts, "{line}");
            let at = jiff::Timestamp::from_microsecond(request.at_us as i64).unwrap();
            assert_eq!(at.to_string(), time, "{line}");
        }
    }

    #[test]
    fn lines_that_are_cut_off_anywhere_are_errors_and_no_panics() {
        for (_, line, ..) in LINES {
            for name in ALL {
                for end in (0..line.len()).filter(|end| line.is_char_boundary(*end)) {
                    let _ = Format::new(name, None).parse(&line[..end]);
                }
            }
        }
    }

    #[test]
    fn log_of_no_known_format_is_an_error_that_says_what_each_format_lacks() {
        let error = Format::recognize(&["hello".to_owned()], None)
            .err()
            .unwrap()
            .to_string();
        for part in [
            "its first line is `hello`",
            "--format",
            "combined: ",
            "json: ",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let error = Format::recognize(&[String::new()], None)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("the log is empty"), "{error}");
    }
}
