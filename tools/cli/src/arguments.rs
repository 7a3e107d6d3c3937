//! The command line, from which the help, the man pages and the shell completions are generated.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use tollgate::config::Format;
use tollgate::store::RedisStoreBuilder;
use tollgate::{Quota, RedisStore};

use crate::limit::{Algorithm, LimitSpec};
use crate::redis::{Certificates, is_tls};
use crate::replay::{KeySpec, Suggest};

/// An operator waits longer than a request.
const DEADLINE: Duration = Duration::from_secs(5);

/// For operators of services that tollgate limits.
///
/// `replay` says what a limit would have done to recorded traffic. The other commands read and
/// change budgets in Redis, examine a Redis, and check files of limits.
///
/// Exit codes: 0 on success, 1 if `doctor` found a problem or `check-config` rejects the file, 2 if
/// a command failed or an argument is invalid, 3 if `block` or `override` changed nothing, because
/// the name of the limit or the quota may be mistyped.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Says what a limit would have done to the requests of an access log
    Replay(Box<ReplayArguments>),
    /// Lists the budgets in Redis
    Keys(KeysArguments),
    /// Shows the state of a client: the units used, the requests in flight, and blocks
    Show(ShowArguments),
    /// Shows the clients that all replicas denied most often in the last minutes
    Top(TopArguments),
    /// Shows what a client has used and has left under each limit of the services
    Usage(UsageArguments),
    /// Asks how many units a client has left under a limit, without consuming any
    Peek(PeekArguments),
    /// Gives a client its budgets back
    Reset(ResetArguments),
    /// Blocks a client under a limit for a while
    Block(BlockArguments),
    /// Ends the block of a client under a limit
    Unblock(BlockedArguments),
    /// Gives a client another quota under a limit, exempts it, or denies it
    Override(OverrideArguments),
    /// Lists the overrides of all clients
    Overrides(OverridesArguments),
    /// Copies the budgets to another Redis, or to another prefix
    Copy(CopyArguments),
    /// Examines a Redis: version, rights, eviction, replication, cluster, latency and clock
    Doctor(DoctorArguments),
    /// Checks a file of limits, and shows the limits of each route
    CheckConfig(CheckConfigArguments),
    /// Prints the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Prints the man page, or writes one for each command into a folder
    Man {
        /// The folder
        folder: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArguments {
    /// Access logs, the oldest first. Gzip is recognized. Without a file, or with `-`, reads
    /// standard input
    pub(crate) files: Vec<PathBuf>,
    /// The limit, such as `100/min`, `gcra 10/s burst 20` or `sliding_window(10) 5/15m`
    ///
    /// An algorithm (default: token_bucket), a quota, and for buckets a burst. The algorithms are
    /// token_bucket, gcra, leaky_bucket, sliding_window, sliding_log, fixed_window and
    /// fixed_window_aligned.
    #[arg(long, value_name = "LIMIT")]
    pub(crate) limit: LimitSpec,
    /// Another limit or algorithm to compare with, such as `50/min` or `sliding_log`. Can be
    /// repeated
    ///
    /// An algorithm without a quota has that of `--limit`, and a quota without an algorithm its
    /// algorithm.
    #[arg(long, value_name = "LIMIT")]
    pub(crate) compare: Vec<String>,
    /// The key of a request: client_ip, user, method, host, path, global or field:NAME, joined by
    /// `+`
    #[arg(long, default_value = "client_ip", value_name = "KEY")]
    pub(crate) key: KeySpec,
    /// The format of the log. Default: recognized from its first lines
    #[arg(long)]
    pub(crate) format: Option<FormatName>,
    /// Networks of proxies: the client is the last address that is in none of them, of
    /// X-Forwarded-For and then the peer. Default: private networks
    #[arg(long, value_delimiter = ',', value_name = "NETWORK")]
    pub(crate) trusted: Vec<ipnet::IpNet>,
    /// Looks for the smallest limit per period that denies no more than a share: `requests=1%` or
    /// `clients=0.5%`. Not with `--compare`
    #[arg(long, value_name = "SHARE", conflicts_with = "compare")]
    pub(crate) suggest: Option<Suggest>,
    /// How many of the most denied keys to show
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    pub(crate) top: usize,
    /// Writes a report with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Prints the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatName {
    /// nginx's and Apache's combined or common format, also with a virtual host in front
    Combined,
    /// Caddy's JSON
    Caddy,
    /// Envoy's default format
    Envoy,
    /// AWS Application Load Balancer
    Alb,
    /// JSON, one object a line; the names of its fields:
    /// https://docs.rs/tollgate/latest/tollgate/guide/operating/
    Json,
}

/// Where the budgets are.
#[derive(Clone, Debug, Args)]
pub(crate) struct RedisArguments {
    /// The Redis: redis://, rediss://, redis+unix://, redis-sentinel:// or redis-cluster://
    #[arg(
        long,
        env = "REDIS_URL",
        default_value = "redis://127.0.0.1/",
        hide_env_values = true
    )]
    pub(crate) url: String,
    /// The prefix of the keys, as the service sets it
    #[arg(long, env = "TOLLGATE_PREFIX", value_name = "PREFIX")]
    pub(crate) prefix: String,
    /// The partitions on a cluster, as the services set them
    #[arg(long, value_name = "COUNT")]
    pub(crate) partitions: Option<usize>,
    #[command(flatten)]
    pub(crate) tls: TlsArguments,
}

/// The certificates for rediss:// URLs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TlsArguments {
    /// A file with CA certificates (PEM) for rediss:// URLs. Default: the CAs of the operating
    /// system
    #[arg(long = "ca", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// A file with the client's certificate (PEM), for a Redis that requires one
    #[arg(long = "cert", value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// A file with the key (PEM) of the client's certificate
    #[arg(long = "key", value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

impl RedisArguments {
    /// The prefix without a colon, which the library adds.
    pub(crate) fn prefix(&self) -> &str {
        self.prefix.trim_end_matches(':')
    }

    /// The store of the services.
    pub(crate) fn store(&self) -> anyhow::Result<RedisStoreBuilder> {
        let certificates = Certificates::read(&self.tls, &self.url)?;
        // `client_name` would need the right `+client|setname`.
        let mut store = RedisStore::builder(self.prefix())
            .url(&self.url)
            .deadline(DEADLINE);
        if let Some(partitions) = self.partitions {
            store = store.partitions(partitions);
        }
        if let Some(tls) = certificates.of_library() {
            store = store.tls(tls);
        }
        Ok(store)
    }
}

#[derive(Debug, Args)]
pub(crate) struct KeysArguments {
    #[command(flatten)]
    pub(crate) redis: RedisArguments,
    /// Only budgets of this limit
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Only budgets of keys that contain this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) containing: Option<String>,
    /// Shows no more than this number
    #[arg(long, default_value_t = 1_000, value_name = "COUNT")]
    pub(crate) max: usize,
    /// Prints one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    #[command(flatten)]
    pub(crate) redis: RedisArguments,
    /// The client's key as `keys` prints it, or a whole key of Redis
    #[arg(value_parser = key)]
    pub(crate) key: String,
    /// Prints one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    #[command(flatten)]
    pub(crate) redis: RedisArguments,
    /// The number of minutes to add up, 1 to 60
    #[arg(long, default_value_t = 10, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1..=60))]
    pub(crate) minutes: u64,
    /// Only denials of this limit
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Shows no more clients than this number
    #[arg(long, default_value_t = 20, value_name = "COUNT")]
    pub(crate) max: usize,
    /// Prints one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UsageArguments {
    #[command(flatten)]
    pub(crate) redis: RedisArguments,
    /// The client's key, as `keys` prints it
    ///
    /// A limit whose key is another one, such as the address, shows a full budget. With --limits,
    /// the table has the name of each limit's key.
    #[arg(value_parser = key)]
    pub(crate) key: String,
    /// The file of limits of the services: TOML, JSON or YAML. Default: the limits that running
    /// services have noted in Redis, with each quota of a plan, and without overrides of files
    #[arg(long, value_name = "FILE", conflicts_with = "limits_in_redis")]
    pub(crate) limits: Option<PathBuf>,
    /// The name of the limits in Redis, if the services follow them there
    #[arg(long, value_name = "NAME")]
    pub(crate) limits_in_redis: Option<String>,
    /// The format of limits in Redis
    #[arg(long, default_value = "toml", requires = "limits_in_redis")]
    pub(crate) format: LimitsFormat,
    /// The client's plan. Default: none, so it has the quotas of the limits
    #[arg(long, value_name = "NAME")]
    pub(crate) plan: Option<String>,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LimitsFormat {
    Toml,
    Json,
    Yaml,
}

impl From<LimitsFormat> for Format {
    fn from(format: LimitsFormat) -> Self {
        match format {
            LimitsFormat::Toml => Self::Toml,
            LimitsFormat::Json => Self::Json,
            LimitsFormat::Yaml => Self::Yaml,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PeekArguments {
    #[command(flatten)]
    pub(crate) redis: RedisArguments,
    /// The client's key, as `keys` prints it
    #[arg(value_parser = key)]
    pub(crate) key: String,
    /// The limit's name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// The limit, such as `gcra 100/min burst 20`, or `10000/month from 15 in Europe/Berlin`.
    /// Default: the limit that running services have noted
    #[arg(long, value_name = "LIMIT")]
    pub(crate) limit: Option<LimitSpec>,
    /// The units to ask for
    #[arg(long, default_value_t = 1)]
    pub(crate) cost: u32,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ResetArguments {
    #[command(flatten)]
    pub(crate) redis: RedisArguments,
    /// The client's key, as `keys` prints it
    #[arg(value_parser = key)]
    pub(crate) key: String,
    /// Only the budget of this limit. Default: all of the key's
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Does not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BlockArguments {
    #[command(flatten)]
    pub(crate) of: BlockedArguments,
    /// For how long, such as `10m` or `1day`, at most 366 days
    #[arg(long = "for", value_name = "TIME", value_parser = period)]
    pub(crate) length: Duration,
}

/// The client of a block, and the limit.
#[derive(Debug, Args)]
pub(crate) struct BlockedArguments {
    #[command(flatten)]
    pub(crate) redis: RedisArguments,
    /// The client's key, as `keys` prints it
    #[arg(value_parser = key)]
    pub(crate) key: String,
    /// The limit's name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// The algorithm of the limit, such as `sliding_window`. Default: the algorithm of the budgets
    /// in Redis
    #[arg(long, value_name = "ALGORITHM")]
    pub(crate) algorithm: Option<Algorithm>,
    /// Does not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// A client's exception under a limit, which all replicas follow within a second.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("effect").required(true))]
pub(crate) struct OverrideArguments {
    #[command(flatten)]
    pub(crate) redis: RedisArguments,
    /// The client's key, as `keys` prints it
    #[arg(value_parser = key)]
    pub(crate) key: String,
    /// The limit's name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// Another quota, such as `1000/min`. Units that were used stay used. The limit's start and
    /// time zone stand
    #[arg(long, group = "effect", value_parser = quota_of_override)]
    pub(crate) quota: Option<Quota>,
    /// The most units at once, of a bucket. Default: the units of the quota
    #[arg(
        long,
        value_name = "UNITS",
        requires = "quota",
        conflicts_with_all = ["permits", "unlimited", "deny", "remove"]
    )]
    pub(crate) burst: Option<u64>,
    /// Another number of requests at once, under a concurrency limit
    #[arg(long, value_name = "COUNT", group = "effect")]
    pub(crate) permits: Option<u32>,
    /// The limit does not apply to the client
    #[arg(long, group = "effect")]
    pub(crate) unlimited: bool,
    /// Denies all requests of the client, with 403 and a text: `--deny="your account is
    /// suspended"`. Default text: `this client is denied`
    #[arg(
        long,
        value_name = "TEXT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "this client is denied",
        group = "effect"
    )]
    pub(crate) deny: Option<String>,
    /// Removes the override
    #[arg(long, group = "effect", conflicts_with_all = ["length", "until", "reason"])]
    pub(crate) remove: bool,
    /// For how long, such as `7d`. Default: until it is removed
    #[arg(long = "for", value_name = "TIME", value_parser = period, conflicts_with = "until")]
    pub(crate) length: Option<Duration>,
    /// The end: a day, such as `2026-12-03`, which is 00:00 UTC, or a time such as
    /// `2026-12-03T18:00:00+01:00`
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) until: Option<SystemTime>,
    /// The reason, for operators. Clients do not get it
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// The operator
    #[arg(long, env = "USER", value_name = "NAME")]
    pub(crate) author: Option<String>,
    /// Sets the override although no running service has noted a limit of this name, or although
    /// the limit counts per day, week, month or year of the calendar and the quota does not
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OverridesArguments {
    #[command(flatten)]
    pub(crate) redis: RedisArguments,
    /// Only overrides of this limit
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Prints one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CopyArguments {
    #[command(flatten)]
    pub(crate) redis: RedisArguments,
    /// The Redis to copy to. Default: the same
    #[arg(long, value_name = "URL")]
    to_url: Option<String>,
    /// The prefix of the keys there. Default: the same
    #[arg(long, value_name = "PREFIX")]
    to_prefix: Option<String>,
    /// The partitions there, on a cluster
    #[arg(long, value_name = "COUNT")]
    to_partitions: Option<usize>,
    /// Does not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
}

impl CopyArguments {
    /// Where the budgets are copied from.
    pub(crate) fn source(&self) -> RedisArguments {
        RedisArguments {
            tls: self.tls_of(&self.redis.url, self.target_url()),
            ..self.redis.clone()
        }
    }

    /// Where the budgets are copied to.
    pub(crate) fn target(&self) -> RedisArguments {
        RedisArguments {
            url: self.target_url().to_owned(),
            prefix: self
                .to_prefix
                .clone()
                .unwrap_or_else(|| self.redis.prefix.clone()),
            partitions: self.to_partitions,
            tls: self.tls_of(self.target_url(), &self.redis.url),
        }
    }

    fn target_url(&self) -> &str {
        self.to_url.as_deref().unwrap_or(&self.redis.url)
    }

    /// The certificates are for both, or for the one that is reached by TLS.
    fn tls_of(&self, url: &str, other: &str) -> TlsArguments {
        match !is_tls(url) && is_tls(other) {
            true => TlsArguments::default(),
            false => self.redis.tls.clone(),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// The Redis: redis://, rediss://, redis+unix://, redis-sentinel:// or redis-cluster://
    #[arg(
        env = "REDIS_URL",
        default_value = "redis://127.0.0.1/",
        hide_env_values = true
    )]
    pub(crate) url: String,
    /// The prefix of the keys, as the service sets it
    #[arg(long, env = "TOLLGATE_PREFIX", value_name = "PREFIX")]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) tls: TlsArguments,
    /// The deadline of a check, as the services set it: latencies are compared with it
    #[arg(
        long,
        default_value = "250ms",
        value_name = "TIME",
        value_parser = humantime::parse_duration
    )]
    pub(crate) deadline: Duration,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckConfigArguments {
    /// The file: TOML, JSON or YAML
    pub(crate) file: PathBuf,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A client's key, as `keys` prints it.
fn key(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty; write the key of a client, as `tollgate keys` prints it".into());
    }
    if text.trim() != text {
        let error = "it starts or ends with a blank; remove it, or write it as `%20`";
        return Err(error.into());
    }
    Ok(text.to_owned())
}

fn quota_of_override(text: &str) -> Result<Quota, String> {
    if text.contains(" from ") || text.contains(" in ") {
        let error = "the limit has the start and the time zone; leave them out";
        return Err(error.into());
    }
    let quota: Result<Quota, _> = text.parse();
    quota.map_err(|error| error.to_string())
}

/// A day in UTC, or a time with its offset.
pub(crate) fn time(text: &str) -> Result<SystemTime, String> {
    let day: Result<jiff::civil::Date, _> = text.parse();
    let time: Result<jiff::Timestamp, _> = match (text.len(), day) {
        (10, Ok(day)) => jiff::tz::TimeZone::UTC.to_timestamp(day.at(0, 0, 0, 0)),
        _ => text.parse(),
    };
    let since_epoch = |time: jiff::Timestamp| {
        let seconds = u64::try_from(time.as_second()).unwrap_or(0);
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    };
    time.map(since_epoch).map_err(|_| {
        format!(
            "`{text}` is not a time; write a day such as `2026-12-03`, or a time with its offset \
             such as `2026-12-03T18:00:00Z`"
        )
    })
}

/// `10m`, as in a quota.
fn period(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s") {
        return Ok(Duration::ZERO);
    }
    // A unit alone is a period of a quota, and no length of a block.
    let quota = text
        .starts_with(|it: char| it.is_ascii_digit())
        .then(|| format!("1/{text}"));
    let quota: Option<tollgate::Quota> = quota.and_then(|quota| quota.parse().ok());
    quota
        .and_then(|quota| quota.period().fixed())
        .ok_or_else(|| {
            format!("`{text}` is not a time; write numbers with units, such as `10m` or `1h 30min`")
        })
}
