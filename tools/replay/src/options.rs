//! The command line.

use tollgate::Limit;

use crate::limit::WireLimit;

pub(crate) const HELP: &str = "\
Replays checks against limits, in virtual time.

usage: replay --limit JSON [--limit JSON ...] [--store memory|redis://...] [--summary] < checks

  --limit JSON    a limit, as {\"name\":\"api\",\"algorithm\":\"gcra\",\"limit\":5,\"period\":\"15m\",\"burst\":5};
                  `period` has a unit, or is \"period_us\":900000000; several are one group
  --store STORE   memory (the default), or the URL of a Redis; each run has keys of its own
                  there, which expire an hour after their time
  --summary       print totals instead of each decision

a check, one a line: {\"at_us\":0,\"op\":\"charge\",\"key\":\"k\",\"cost\":1}
  op is charge (the default), peek, refund, settle, reset or block; key is empty and cost is 1 by
  default;
  \"limit\":{...} replaces the limit of its name from that line on;
  a charge may have \"max_wait_us\":1000000, for which it waits;
  a block may have \"block_us\":1000000, its length: without it, it ends;
  a refund or settlement has \"receipt\":{\"at_us\":0,\"cost\":1}, the time and the cost of its charge,
  and of a bucket perhaps its \"drains_at_us\"
";

#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) limits: Vec<Limit>,
    pub(crate) store: StoreKind,
    pub(crate) summary: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) enum StoreKind {
    Memory,
    Redis(String),
}

impl Options {
    /// The options, or `None` if help is asked for.
    pub(crate) fn parse(
        arguments: impl IntoIterator<Item = String>,
    ) -> Result<Option<Self>, String> {
        let mut options = Self {
            limits: Vec::new(),
            store: StoreKind::Memory,
            summary: false,
        };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut value = || {
                arguments
                    .next()
                    .ok_or(format!("{argument} needs a value; see --help"))
            };
            match argument.as_str() {
                "--limit" => options.add_limit(&value()?)?,
                "--store" => options.store = StoreKind::parse(value()?)?,
                "--summary" => options.summary = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("unknown option `{argument}`; see --help")),
            }
        }
        if options.limits.is_empty() {
            return Err("no limit: give at least one --limit; see --help".to_owned());
        }
        Ok(Some(options))
    }

    fn add_limit(&mut self, json: &str) -> Result<(), String> {
        let WireLimit(limit) =
            serde_json::from_str(json).map_err(|error| format!("--limit {json}: {error}"))?;
        if self.limits.iter().any(|known| known.name() == limit.name()) {
            return Err(format!("two limits have the name `{}`", limit.name()));
        }
        self.limits.push(limit);
        Ok(())
    }
}

impl StoreKind {
    fn parse(store: String) -> Result<Self, String> {
        match store.as_str() {
            "memory" => Ok(Self::Memory),
            url if url.contains(':') => Ok(Self::Redis(store)),
            _ => Err(format!(
                "--store is `{store}`; use `memory` or the URL of a Redis"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = r#"{"name":"a","algorithm":"gcra","quota":"5/s"}"#;
    const B: &str = r#"{"name":"b","algorithm":"gcra","quota":"5/s"}"#;

    fn parse(arguments: &[&str]) -> Result<Option<Options>, String> {
        Options::parse(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn options_come_in_any_order() {
        let options = parse(&[
            "--limit",
            A,
            "--summary",
            "--limit",
            B,
            "--store",
            "redis://h/",
        ]);
        let options = options.unwrap().unwrap();
        let names: Vec<_> = options.limits.iter().map(Limit::name).collect();
        assert_eq!((names, options.summary), (vec!["a", "b"], true));
        assert_eq!(options.store, StoreKind::Redis("redis://h/".to_owned()));
    }

    #[test]
    fn limit_is_the_only_required_option() {
        let options = parse(&["--limit", A]).unwrap().unwrap();
        assert_eq!((options.store, options.summary), (StoreKind::Memory, false));
    }

    #[test]
    fn help_needs_no_other_option() {
        for help in ["--help", "-h"] {
            assert_eq!(parse(&[help]), Ok(None));
        }
    }

    #[test]
    fn invalid_options_are_errors_that_say_why() {
        for (arguments, reason) in [
            (&[][..], "no limit: give at least one --limit"),
            (&["--limit"], "--limit needs a value"),
            (&["--limit", "{}"], "--limit {}: "),
            (
                &["--limit", A, "--limit", A],
                "two limits have the name `a`",
            ),
            (
                &["--limit", A, "--store", "disk"],
                "--store is `disk`; use `memory` or the URL",
            ),
            (&["--limit", A, "--verbose"], "unknown option `--verbose`"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(reason), "{arguments:?}: {error}");
        }
    }
}
