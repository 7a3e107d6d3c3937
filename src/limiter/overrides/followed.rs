//! Overrides in Redis, which this process follows.

use std::sync::{Arc, OnceLock, Weak};

use tokio::runtime::Handle as Runtime;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::SharedOverrides;
use crate::model::{Error, Key, Override};
use crate::store::RedisStore;
use crate::store::redis::{OverrideChanges, OverridesInRedis};
use crate::telemetry;
use crate::units::ConfigError;

pub(super) struct FollowedOverrides {
    redis: OverridesInRedis,
    runtime: Runtime,
    /// Held while the task or a caller updates the table.
    reading: Mutex<()>,
    /// The task that follows. It ends with the last handle.
    task: OnceLock<JoinSet<()>>,
}

impl FollowedOverrides {
    pub(super) fn new(store: &RedisStore) -> Result<Self, ConfigError> {
        let runtime = Runtime::try_current().map_err(|_| {
            ConfigError::new(
                "overrides in Redis are followed by a task; create them inside of a tokio runtime",
            )
        })?;
        Ok(Self {
            redis: OverridesInRedis::new(store),
            runtime,
            reading: Mutex::default(),
            task: OnceLock::new(),
        })
    }

    pub(super) async fn set(&self, shared: &SharedOverrides, new: &Override) -> Result<(), Error> {
        self.redis.set(new).await?;
        self.read_one(shared, new.limit_name(), new.key()).await;
        Ok(())
    }

    pub(super) async fn remove(
        &self,
        shared: &SharedOverrides,
        limit: &str,
        key: &Key,
    ) -> Result<bool, Error> {
        let is_removed = self.redis.remove(limit, key).await?;
        self.read_one(shared, limit, key).await;
        Ok(is_removed)
    }

    /// Reads what this process has just written. If it fails, the task reads it.
    async fn read_one(&self, shared: &SharedOverrides, limit: &str, key: &Key) {
        let _reading = self.reading.lock().await;
        match self.redis.read_one(limit, key).await {
            Ok(Some(one)) => shared.insert(one),
            Ok(None) => drop(shared.remove(limit, key)),
            Err(_) => {}
        }
    }

    /// Reads all overrides. If Redis lost them, this process keeps those that it has.
    pub(super) async fn read(&self, shared: &SharedOverrides) -> Result<Vec<Override>, Error> {
        let _reading = self.reading.lock().await;
        let all = self.redis.read().await?;
        if let Some(all) = &all {
            shared.replace_all(all.clone()).await;
        }
        Ok(all.unwrap_or_default())
    }

    /// Begins to follow, if it has not begun.
    pub(super) fn follow(&self, shared: &Arc<SharedOverrides>) {
        self.task.get_or_init(|| {
            let mut task = JoinSet::new();
            let following = follow(Arc::downgrade(shared));
            task.spawn_on(following, &self.runtime);
            task
        });
    }
}

async fn follow(shared: Weak<SharedOverrides>) {
    let Some(mut feed) = with_followed(&shared, |it| it.redis.feed()) else {
        return;
    };
    loop {
        feed.wait().await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let Some(followed) = &shared.followed else {
            return;
        };
        let _reading = followed.reading.lock().await;
        match feed.changes(shared.table.len()).await {
            None => {}
            Some(OverrideChanges::All(all)) => {
                telemetry::overrides_read(all.len());
                shared.replace_all(all).await;
            }
            Some(OverrideChanges::Listed(changes)) => {
                for (limit, key, now) in changes {
                    shared.change(&limit, &key, now);
                }
            }
        }
    }
}

fn with_followed<T>(
    shared: &Weak<SharedOverrides>,
    act: impl FnOnce(&FollowedOverrides) -> T,
) -> Option<T> {
    shared.upgrade()?.followed.as_ref().map(act)
}

impl SharedOverrides {
    async fn replace_all(&self, all: Vec<Override>) {
        self.table.replace_in_steps(all).await;
        self.count();
    }

    fn change(&self, limit: &str, key: &Key, now: Option<Override>) {
        match now {
            Some(now) => {
                telemetry::override_set(&now);
                self.insert(now);
            }
            None => {
                telemetry::override_removed(limit, key);
                self.remove(limit, key);
            }
        }
    }
}
