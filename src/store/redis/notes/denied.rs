//! The keys that are denied most often, of all processes, for `tollgate top`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::runtime::Handle as Runtime;

use super::Notes;
use crate::store::redis::script;

const MINUTE: Duration = Duration::from_secs(60);

/// The most keys that a process adds to a minute.
const MOST: usize = 64;

/// Adds the keys to those of the minute, which all processes share.
pub(super) fn note(notes: &Arc<Notes>, keys: &[(&str, &str, u64)]) {
    let Ok(runtime) = Runtime::try_current() else {
        return;
    };
    let now = match notes.clock() {
        Some(clock) => Duration::from_micros(clock.now()),
        None => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    };
    let minute = now.as_secs() / MINUTE.as_secs();
    let mut command = redis::cmd("EVAL");
    command.arg(script::DENIED).arg(1);
    command.arg(format!("{}:denied:{minute}", notes.prefix));
    for (limit, key, denials) in keys.iter().take(MOST) {
        command.arg(limit).arg(key).arg(denials);
    }
    let notes = Arc::clone(notes);
    runtime.spawn(async move { notes.run::<()>(&command).await });
}
