//! The keys that are denied most often, of all processes, for `tollgate top`.

use std::sync::Arc;

use tokio::runtime::Handle as Runtime;

use super::Notes;
use crate::store::redis::script;

/// The most keys that a process adds to a minute.
const MOST: usize = 64;

/// Adds the keys to the minute's keys, which all processes share.
pub(super) fn note(notes: &Arc<Notes>, keys: &[(&str, &str, u64)]) {
    let Ok(runtime) = Runtime::try_current() else {
        return;
    };
    let fields = |(limit, key, denials): &(&str, &str, u64)| {
        [(*limit).to_owned(), (*key).to_owned(), denials.to_string()]
    };
    let fields: Vec<String> = keys.iter().take(MOST).flat_map(fields).collect();
    let notes = Arc::clone(notes);
    runtime.spawn(async move { add(&notes, &fields).await });
}

/// Adds the keys. Not twice, because a note that may have arrived is not repeated.
async fn add(notes: &Notes, fields: &[String]) -> Option<()> {
    let minute = seconds(notes).await? / 60;
    let mut command = redis::cmd("EVAL");
    command.arg(script::DENIED).arg(1);
    command.arg(format!("{}:denied:{minute}", notes.prefix));
    command.arg(fields);
    notes.run_once(&command).await
}

/// The store's time.
async fn seconds(notes: &Notes) -> Option<u64> {
    if let Some(clock) = notes.clock() {
        return Some(clock.now().since_epoch().as_secs());
    }
    let (seconds, _): (u64, u64) = notes.run(&redis::cmd("TIME")).await?;
    Some(seconds)
}
