//! Overrides in a hash of Redis, and a channel that announces changes of it.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Cmd, FromRedisValue};
use tokio::time::{Instant, sleep};

use super::channel::{CHECK_EVERY, Feed, config_prefix};
use super::command::{self, CommandError};
use super::{Lanes, RedisStore, script};
use crate::configuration::OverrideConfig;
use crate::model::{Error, Key, MAX_OVERRIDES, Override};
use crate::store::Announcement;
use crate::telemetry;
use crate::units::{ConfigError, Micros, Timestamp};

/// The last part of the names of the hash and of the channel.
pub(super) const NAME: &str = "overrides";

/// How often the version is read although no change was announced.
const POLL: Duration = Duration::from_secs(10);

/// The pause between an announcement and reading, for the announcements that follow it.
const QUIET_FOR: Duration = Duration::from_millis(50);

/// How many fields Redis reads at a time, which takes it about a tenth of a millisecond.
const AT_A_TIME: usize = 500;

/// The most malformed overrides that are reported when all are read.
const MOST_REPORTED: u32 = 16;

/// The version of a hash that is not there.
const NO_HASH: u64 = 0;

/// The version of a hash whose own is malformed. The next change of an override mends it.
const MALFORMED: u64 = u64::MAX;

/// How long an override has ended before it makes room for another. Clocks of operators' machines
/// and of services differ.
const ENDED_FOR: Micros = 10 * 60 * 1_000_000;

/// The field with the version of all overrides. Other fields have a space.
const VERSION: &str = "version";

/// The overrides of a store.
#[derive(Clone)]
pub(crate) struct OverridesInRedis {
    lanes: Lanes,
    prefix: String,
    key: String,
    channel: String,
}

/// Changes that replicas have to follow.
pub(crate) enum OverrideChanges {
    /// Any override may have changed. This is the new list.
    All(Vec<Override>),
    /// Only the listed ones have changed.
    Listed(Vec<ChangedOverride>),
}

/// Fields of the hash with their texts, which may not be UTF-8.
type Page = Vec<(Vec<u8>, Vec<u8>)>;

/// A limit and a key, and their override. `None` if it was removed.
type ChangedOverride = (String, Key, Option<Override>);

/// Follows changes of the hash.
pub(crate) struct OverrideFeed {
    redis: OverridesInRedis,
    feed: Feed,
    known: Option<u64>,
    /// The changes to be read. `None` if any override may have changed.
    announced: Option<Vec<Announced>>,
    /// Why they cannot be read now.
    unread: Option<Unread>,
}

/// A change of a field of the hash.
struct FieldChange {
    field: String,
    action: Action,
}

enum Action {
    Set {
        text: String,
    },
    Remove {
        /// The only text that may be removed. `None` if any may.
        only_if: Option<String>,
    },
}

/// An announced change of one override, with the versions before and after it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Announced {
    before: u64,
    after: u64,
    field: String,
}

/// Why overrides cannot be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unread {
    /// Redis is unavailable.
    Unavailable,
    /// The hash is gone or malformed, or this user may not read it.
    Invalid,
}

impl OverridesInRedis {
    pub(crate) fn new(store: &RedisStore) -> Self {
        let lanes = store.lanes().clone();
        let (prefix, partition) = config_prefix(&lanes);
        Self {
            key: format!("{prefix}:{partition}{NAME}"),
            channel: format!("{prefix}:{NAME}"),
            lanes,
            prefix,
        }
    }

    /// Sets an override.
    pub(crate) async fn set(&self, new: &Override) -> Result<(), Error> {
        let field = field(new.limit_name(), new.key());
        let text = serde_json::to_string(&OverrideConfig::from(new));
        let text = text.map_err(|error| ConfigError::new(error.to_string()))?;
        let set = [FieldChange {
            field,
            action: Action::Set { text },
        }];
        let mut changed = self.change(&set).await?;
        if changed < 0 {
            self.remove_ended().await?;
            changed = self.change(&set).await?;
        }
        match changed {
            ..0 => Err(Error::misuse(format!(
                "Redis key `{}` has {MAX_OVERRIDES} overrides, which is the most; remove one, or \
                 use plans",
                self.key
            ))),
            _ => Ok(()),
        }
    }

    /// Removes an override. Returns whether there was one.
    pub(crate) async fn remove(&self, limit: &str, key: &Key) -> Result<bool, Error> {
        let removal = FieldChange {
            field: field(limit, key),
            action: Action::Remove { only_if: None },
        };
        Ok(self.change(&[removal]).await? > 0)
    }

    /// Reads the override of one key.
    pub(crate) async fn read_one(&self, limit: &str, key: &Key) -> Result<Option<Override>, Error> {
        let field = field(limit, key);
        let mut get = redis::cmd("HGET");
        get.arg(&self.key).arg(&field);
        let text: Option<Vec<u8>> = self
            .run(&get)
            .await
            .map_err(|error| self.error("not read", error))?;
        Ok(text.and_then(|text| self.parse(&field, &text)))
    }

    /// Reads all overrides, without those that have ended. `None` if there is no hash.
    pub(crate) async fn read(&self) -> Result<Option<Vec<Override>>, Error> {
        let read = async {
            let version = self.version().await?;
            let all = self.scan_in_force().await?;
            Ok(version.map(|_| all))
        };
        read.await.map_err(|error| self.error("not read", error))
    }

    fn now(&self) -> Timestamp {
        match &self.lanes.all[0].settings.clock {
            Some(clock) => clock.now(),
            None => Timestamp::EPOCH.or_now(),
        }
    }

    /// The changes from now on.
    pub(crate) fn feed(&self) -> OverrideFeed {
        let channel = self.channel.clone();
        OverrideFeed {
            feed: Feed::new(self.lanes.clone(), self.prefix.clone(), channel),
            redis: self.clone(),
            known: None,
            announced: None,
            unread: None,
        }
    }

    /// Changes fields, and announces that. Returns how many changed.
    async fn change(&self, changes: &[FieldChange]) -> Result<i64, Error> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(script::OVERRIDES).arg(1).arg(&self.key);
        eval.arg(&self.channel).arg(MAX_OVERRIDES);
        for change in changes {
            let (text, only_if) = match &change.action {
                Action::Set { text } => (text.as_str(), ""),
                Action::Remove { only_if } => ("", only_if.as_deref().unwrap_or_default()),
            };
            eval.arg(&change.field).arg(text).arg(only_if);
        }
        let changed = self.run(&eval).await;
        changed.map_err(|error| self.error("not written", error))
    }

    /// Removes overrides that have ended. One that is renewed meanwhile stays.
    async fn remove_ended(&self) -> Result<(), Error> {
        let before = self.now().saturating_sub(ENDED_FOR);
        let ended = self.scan(|one, text| one.is_over(before).then_some(text));
        let ended = ended.await.map_err(|error| self.error("not read", error))?;
        let removal = |(field, text)| FieldChange {
            field,
            action: Action::Remove {
                only_if: Some(text),
            },
        };
        let removals: Vec<_> = ended.into_iter().map(removal).collect();
        for some in removals.chunks(AT_A_TIME) {
            self.change(some).await?;
        }
        Ok(())
    }

    async fn scan_in_force(&self) -> Result<Vec<Override>, CommandError> {
        let now = self.now();
        let all = self.scan(|one, _| (!one.is_over(now)).then_some(one));
        Ok(all.await?.into_values().collect())
    }

    /// Reads all overrides. Returns those to keep, by their fields.
    async fn scan<T>(
        &self,
        keep: impl Fn(Override, String) -> Option<T>,
    ) -> Result<HashMap<String, T>, CommandError> {
        // A field may be returned twice.
        let mut found = HashMap::new();
        let mut malformed = 0;
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&self.key).arg(cursor);
            scan.arg("COUNT").arg(AT_A_TIME);
            let (next, page): (u64, Page) = self.run(&scan).await?;
            // Each page is parsed before the next is there, so that tasks in between can run.
            for (field, text) in page {
                if field == VERSION.as_bytes() {
                    continue;
                }
                match parse_bytes(&field, &text) {
                    Ok((field, text, one)) => {
                        found.extend(keep(one, text.to_owned()).map(|it| (field.to_owned(), it)));
                    }
                    Err(error) if malformed < MOST_REPORTED => {
                        malformed += 1;
                        let field = String::from_utf8_lossy(&field);
                        telemetry::override_malformed(&self.key, &field, &error);
                    }
                    Err(_) => {}
                }
            }
            if found.len() > MAX_OVERRIDES {
                let many = format!("it has more than {MAX_OVERRIDES} overrides; remove some");
                return Err(CommandError::Invalid(many));
            }
            if next == 0 {
                return Ok(found);
            }
            cursor = next;
        }
    }

    /// The version of all overrides. `None` if there is no hash.
    async fn version(&self) -> Result<Option<u64>, CommandError> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.key).arg(VERSION);
        let text: Option<Vec<u8>> = self.run(&get).await?;
        Ok(text.map(|text| parse_version(&text).unwrap_or(MALFORMED)))
    }

    /// Reads an override. One that is malformed is reported, and counts as none.
    fn parse(&self, field: &str, text: &[u8]) -> Option<Override> {
        match parse_bytes(field.as_bytes(), text) {
            Ok((_, _, parsed)) => Some(parsed),
            Err(error) => {
                telemetry::override_malformed(&self.key, field, &error);
                None
            }
        }
    }

    fn error(&self, what: &str, error: CommandError) -> Error {
        error.into_error(&format!("overrides in Redis key `{}`: {what}", self.key))
    }

    async fn run<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CommandError> {
        command::run(&self.lanes, command, &self.prefix).await
    }
}

/// The name of an override in the hash. A key has no space, and a limit's name may have some.
fn field(limit: &str, key: &Key) -> String {
    format!("{key} {limit}")
}

fn parse_field(field: &str) -> Result<(&str, Key), ConfigError> {
    let (key, limit) = field.split_once(' ').ok_or_else(|| {
        ConfigError::new("the field is not the key and the name of a limit, with a space between")
    })?;
    Ok((limit, Key::from_encoded(key)?))
}

/// A field and its text, with the override that they say.
fn parse_bytes<'a>(
    field: &'a [u8],
    text: &'a [u8],
) -> Result<(&'a str, &'a str, Override), ConfigError> {
    let utf8 = |bytes: &'a [u8]| {
        std::str::from_utf8(bytes).map_err(|_| ConfigError::new("it is not UTF-8"))
    };
    let field = utf8(field)?;
    let text = utf8(text)?;
    Ok((field, text, parse(field, text)?))
}

fn parse_version(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn parse(field: &str, text: &str) -> Result<Override, ConfigError> {
    let (limit, key) = parse_field(field)?;
    let config: OverrideConfig =
        serde_json::from_str(text).map_err(|error| ConfigError::new(error.to_string()))?;
    config.parse(limit, key)
}

impl OverrideFeed {
    /// Waits until it is time to read.
    pub(crate) async fn wait(&mut self) {
        self.announced = None;
        match self.feed.subscribe().await {
            // Earlier announcements are unknown.
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => telemetry::overrides_unsubscribed(&self.redis.channel, &error),
        }
        if self.unread.is_some() || !self.feed.is_subscribed() {
            // The first time, at once.
            if self.unread.is_some() || self.known.is_some() {
                sleep(CHECK_EVERY).await;
            }
            return;
        }
        let since = Instant::now();
        while self.feed.is_subscribed() && since.elapsed() < POLL {
            if let Some(first) = self.feed.next().await {
                sleep(QUIET_FOR).await;
                let mut announced = vec![first];
                announced.extend(self.feed.take_waiting());
                self.announced = announced.iter().map(parse_announcement).collect();
                return;
            }
        }
    }

    /// Reads the changes. `None` if there are none, or they cannot be read, which is reported once
    /// for each cause. The process has so many `overrides`.
    pub(crate) async fn changes(&mut self, overrides: usize) -> Option<OverrideChanges> {
        let (unread, reason) = match self.read_changes(overrides).await {
            Ok(changes) => {
                self.unread = None;
                return changes;
            }
            Err(CommandError::Unavailable(reason)) => (Unread::Unavailable, reason),
            Err(CommandError::Invalid(reason)) => (Unread::Invalid, reason),
        };
        telemetry::overrides_unread();
        if self.unread.replace(unread) != Some(unread) {
            telemetry::overrides_not_read(&self.redis.key, &reason, overrides);
        }
        None
    }

    async fn read_changes(
        &mut self,
        overrides: usize,
    ) -> Result<Option<OverrideChanges>, CommandError> {
        if let Some(known) = self.known
            && let Some(announced) = self.announced.take()
            && let Some((version, fields)) = following(known, announced)
        {
            // A hash with an older version has lost the changes, or the message is forged.
            if let Some(changes) = self.read_fields(version, &fields).await? {
                self.known = Some(version);
                return Ok(Some(OverrideChanges::Listed(changes)));
            }
        }
        // A change while they are read is announced afterwards.
        let version = match self.redis.version().await? {
            Some(version) => version,
            // None was ever set.
            None if overrides == 0 => NO_HASH,
            // Redis lost it, because the last override that is removed leaves the version.
            None => {
                let lost = "the hash is gone, which Redis may have lost; set the overrides again";
                return Err(CommandError::Invalid(lost.to_owned()));
            }
        };
        if self.known == Some(version) {
            return Ok(None);
        }
        let all = self.redis.scan_in_force().await?;
        self.known = Some(version);
        Ok(Some(OverrideChanges::All(all)))
    }

    /// `None` if the hash has an older version.
    async fn read_fields(
        &self,
        announced: u64,
        fields: &[String],
    ) -> Result<Option<Vec<ChangedOverride>>, CommandError> {
        let named = fields.iter().filter_map(|field| {
            let (limit, key) = parse_field(field).ok()?;
            Some((field, limit.to_owned(), key))
        });
        let named: Vec<_> = named.collect();
        let mut get = redis::cmd("HMGET");
        get.arg(&self.redis.key).arg(VERSION);
        for (field, ..) in &named {
            get.arg(*field);
        }
        let texts: Vec<Option<Vec<u8>>> = self.redis.run(&get).await?;
        let mut texts = texts.into_iter();
        let version = texts.next().flatten();
        let version = version.and_then(|version| parse_version(&version));
        if version.is_none_or(|version| version < announced) {
            return Ok(None);
        }
        let changes = named.into_iter().zip(texts);
        let changes = changes.map(|((field, limit, key), text)| {
            let now = text.and_then(|text| self.redis.parse(field, &text));
            (limit, key, now)
        });
        Ok(Some(changes.collect()))
    }
}

/// Reads the announcement of a change. `None` if any override may have changed.
fn parse_announcement(announcement: &Announcement) -> Option<Announced> {
    let Announcement::One(text) = announcement else {
        return None;
    };
    let mut words = text.splitn(3, ' ');
    let mut version = || words.next()?.parse().ok();
    Some(Announced {
        before: version()?,
        after: version()?,
        field: words.next()?.to_owned(),
    })
}

/// The last version and the fields of changes that follow the `known` version, if none is missing.
fn following(known: u64, mut announced: Vec<Announced>) -> Option<(u64, Vec<String>)> {
    announced.retain(|change| change.after > known);
    announced.sort();
    announced.dedup();
    let mut version = known;
    for change in &announced {
        if change.before != version {
            return None;
        }
        version = change.after;
    }
    let fields = announced.into_iter().map(|change| change.field);
    Some((version, fields.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change((before, after): (u64, u64)) -> Announced {
        Announced {
            before,
            after,
            field: format!("acme{after} api"),
        }
    }

    #[test]
    fn changes_are_followed_one_by_one_only_if_none_is_missing() {
        let fields = |changes: &[(u64, u64)]| {
            let followed = following(70, changes.iter().copied().map(change).collect());
            followed.map(|(version, fields)| (version, fields.len()))
        };
        assert_eq!(fields(&[(70, 80)]), Some((80, 1)));
        assert_eq!(
            fields(&[(85, 92), (70, 80), (80, 85), (80, 85)]),
            Some((92, 3))
        );
        assert_eq!(
            fields(&[(40, 50), (50, 70)]),
            Some((70, 0)),
            "they are known"
        );
        assert_eq!(fields(&[(75, 80)]), None, "75 is missing");
        assert_eq!(fields(&[(70, 80), (82, 90)]), None);
        assert_eq!(fields(&[(60, 80)]), None, "70 was lost");
    }

    #[test]
    fn field_has_a_key_and_a_name_with_spaces() {
        let key = Key::from_parts(["a b", "c"]);
        let field = field("the api", &key);
        assert_eq!(field, "a%20b:c the api");
        assert_eq!(parse_field(&field), Ok(("the api", key)));
        assert!(parse_field(VERSION).is_err());
        assert!(parse_field("(acme api").is_err());
    }

    #[test]
    fn announcement_of_several_changes_is_of_any() {
        let one = |text: &str| parse_announcement(&Announcement::One(text.to_owned()));
        let announced = one("7 9 acme api").map(|it| (it.before, it.after, it.field));
        assert_eq!(announced, Some((7, 9, "acme api".to_owned())));
        assert_eq!(one("7 9"), None);
        assert_eq!(one("changed by hand"), None);
        assert_eq!(parse_announcement(&Announcement::Any), None);
    }
}
