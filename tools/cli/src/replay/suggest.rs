//! The smallest quota that denies no more than a share of requests or clients.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::str::FromStr;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tollgate::Key;

use super::comparison::Simulation;
use super::report::share;
use crate::limit::LimitSpec;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    Requests,
    Clients,
}

/// `requests=1%`: no more than this share may be denied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Suggest {
    of: Of,
    most: Share,
}

/// A share in units of 10^-11, so that `0.7%` of 1,000 are exactly 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share(u64);

impl Share {
    const ONE_PERCENT: u64 = 1_000_000_000;

    /// A percentage of 0 to less than 100, with up to nine decimals.
    fn of_percent(text: &str) -> Option<Self> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let is_number = |text: &str| text.bytes().all(|it| it.is_ascii_digit());
        if whole.is_empty() || whole.len() > 2 || decimals.len() > 9 {
            return None;
        }
        if !is_number(whole) || !is_number(decimals) {
            return None;
        }
        let (whole, decimals): (u64, u64) =
            (whole.parse().ok()?, format!("{decimals:0<9}").parse().ok()?);
        Some(Self(whole * Self::ONE_PERCENT + decimals))
    }

    fn holds(self, part: u64, of: u64) -> bool {
        let one = 100 * u128::from(Self::ONE_PERCENT);
        u128::from(part) * one <= u128::from(self.0) * u128::from(of)
    }
}

impl FromStr for Suggest {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (of, share) = text.split_once('=').unwrap_or(("requests", text));
        let of = match of {
            "requests" => Of::Requests,
            "clients" => Of::Clients,
            _ => bail!("`{of}` is no share; use `requests=1%` or `clients=1%`"),
        };
        match share.strip_suffix('%').and_then(Share::of_percent) {
            Some(most) => Ok(Self { of, most }),
            None => bail!(
                "the share `{share}` is no percentage; use 0% to less than 100%, with at most nine \
                 decimals, such as `0.5%`"
            ),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Suggestion {
    pub(super) limit: String,
    pub(super) denied: u64,
    pub(super) denied_share: f64,
    pub(super) keys_denied: u64,
    pub(super) keys_denied_share: f64,
    /// The next smaller limit, which denies more than that.
    pub(super) smaller: Option<Smaller>,
}

#[derive(Debug, Serialize)]
pub(super) struct Smaller {
    pub(super) limit: String,
    pub(super) denied_share: f64,
    pub(super) keys_denied_share: f64,
}

#[derive(Clone, Copy)]
struct Denials {
    requests: u64,
    keys: u64,
}

/// The times and the keys of all requests, in a file without a name: a replay for each limit that
/// is tried.
pub(super) struct Spool {
    file: BufWriter<File>,
    hasher: RandomState,
    requests: u64,
}

/// A time, and the hash of a key.
const ENTRY: usize = 16;

impl Spool {
    pub(super) fn new() -> anyhow::Result<Self> {
        let file = tempfile::tempfile().context("cannot create a temporary file")?;
        Ok(Self {
            file: BufWriter::new(file),
            hasher: RandomState::new(),
            requests: 0,
        })
    }

    pub(super) fn push(&mut self, at_us: u64, key: &Key) -> anyhow::Result<()> {
        let hash = self.hasher.hash_one(key);
        self.file
            .write_all(&at_us.to_le_bytes())
            .context("cannot write a temporary file")?;
        self.file
            .write_all(&hash.to_le_bytes())
            .context("cannot write a temporary file")?;
        self.requests += 1;
        Ok(())
    }

    /// The denials of a limit.
    async fn replay(&mut self, spec: &LimitSpec) -> anyhow::Result<Denials> {
        self.file.seek(SeekFrom::Start(0))?;
        let mut entries = BufReader::with_capacity(1 << 20, self.file.get_ref());
        let (simulation, mut denied, mut requests) = (Simulation::new(spec)?, HashSet::new(), 0);
        let mut entry = [0; ENTRY];
        loop {
            match entries.read_exact(&mut entry) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error.into()),
            }
            let (at, key) = entry.split_at(ENTRY / 2);
            let at_us = u64::from_le_bytes(at.try_into()?);
            if !simulation.allows(at_us, &Key::new(key)).await? {
                requests += 1;
                denied.insert(u64::from_le_bytes(key.try_into()?));
            }
        }
        Ok(Denials {
            requests,
            keys: denied.len() as u64,
        })
    }
}

impl Suggest {
    /// Tries limits with the period, the burst and the algorithm of `like`.
    pub(super) async fn search(
        self,
        like: &LimitSpec,
        mut spool: Spool,
        keys: u64,
    ) -> anyhow::Result<Suggestion> {
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{spinner} tried {msg}")?);
        let requests = spool.requests;
        let fits = |denials: Denials| match self.of {
            Of::Requests => self.most.holds(denials.requests, requests),
            Of::Clients => self.most.holds(denials.keys, keys),
        };
        let mut try_limit = async |limit: u64| {
            let spec = like.with_limit(limit);
            let denials = spool.replay(&spec).await?;
            bar.set_message(format!("{spec}: {} denied", denials.requests));
            bar.tick();
            anyhow::Ok(denials)
        };
        // Between a limit that denies too much, if there is one, and one that does not.
        let (mut low, mut high) = (0, 1_u64);
        let (mut of_low, mut of_high) = (None, try_limit(1).await?);
        while !fits(of_high) {
            (low, of_low) = (high, Some(of_high));
            high = high.checked_mul(2).context("no limit denies so few")?;
            let limit = like.with_limit(high).limit("replay");
            let limit = limit.with_context(|| {
                format!(
                    "{} still denies too much; {}",
                    like.with_limit(low),
                    like.advice_if_none_fits()
                )
            })?;
            drop(limit);
            of_high = try_limit(high).await?;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let denials = try_limit(middle).await?;
            if fits(denials) {
                (high, of_high) = (middle, denials);
            } else {
                (low, of_low) = (middle, Some(denials));
            }
        }
        bar.finish_and_clear();
        Ok(Suggestion {
            limit: like.with_limit(high).to_string(),
            denied: of_high.requests,
            denied_share: share(of_high.requests, requests),
            keys_denied: of_high.keys,
            keys_denied_share: share(of_high.keys, keys),
            smaller: of_low.map(|denials| Smaller {
                limit: like.with_limit(low).to_string(),
                denied_share: share(denials.requests, requests),
                keys_denied_share: share(denials.keys, keys),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_a_percentage_of_requests_or_clients() {
        let parse = |text: &str| text.parse::<Suggest>();
        assert_eq!(
            parse("requests=1%").unwrap(),
            Suggest {
                of: Of::Requests,
                most: Share(1_000_000_000)
            }
        );
        assert_eq!(
            parse("0.5%").unwrap(),
            Suggest {
                of: Of::Requests,
                most: Share(500_000_000)
            }
        );
        assert_eq!(
            parse("clients=0%").unwrap(),
            Suggest {
                of: Of::Clients,
                most: Share(0)
            }
        );
        for text in [
            "clients=1",
            "users=1%",
            "clients=100%",
            "clients=-1%",
            "clients=NaN%",
            "%",
            "1.%%",
        ] {
            assert!(parse(text).unwrap_err().to_string().contains('%'), "{text}");
        }
    }

    #[test]
    fn share_is_compared_exactly() {
        for (percent, part, of, holds) in [
            ("0.7", 7, 1_000, true),
            ("0.7", 8, 1_000, false),
            ("0.57", 57, 10_000, true),
            ("0.000000001", 1, 100_000_000_000, true),
            ("0.000000001", 1, 99_999_999_999, false),
            ("0", 0, 5, true),
            ("99.9", u64::MAX, u64::MAX, false),
        ] {
            assert_eq!(
                Share::of_percent(percent).unwrap().holds(part, of),
                holds,
                "{percent}"
            );
        }
    }

    #[tokio::test]
    async fn smallest_limit_that_denies_no_more_than_the_share_is_found() {
        // One client sends 7 requests at once, nine clients send 2.
        let mut spool = Spool::new().unwrap();
        for client in 0..10 {
            for _ in 0..if client == 0 { 7 } else { 2 } {
                spool
                    .push(1_000_000, &Key::new(client.to_string()))
                    .unwrap();
            }
        }
        for (share, limit, smaller) in [
            ("requests=0%", "fixed_window 7/min", "fixed_window 6/min"),
            ("requests=20%", "fixed_window 2/min", "fixed_window 1/min"),
            ("clients=10%", "fixed_window 2/min", "fixed_window 1/min"),
        ] {
            let again = Spool {
                file: BufWriter::new(spool.file.get_ref().try_clone().unwrap()),
                hasher: spool.hasher.clone(),
                requests: spool.requests,
            };
            spool.file.flush().unwrap();
            let suggest: Suggest = share.parse().unwrap();
            let like = "fixed_window 100/min".parse().unwrap();
            let found = suggest.search(&like, again, 10).await.unwrap();
            assert_eq!(found.limit, limit, "{share}");
            assert_eq!(found.smaller.unwrap().limit, smaller, "{share}");
        }
    }
}
