//! A file that is watched.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::ConfigSource;
use crate::configuration::parse::unreadable;
use crate::configuration::{Config, Format};
use crate::nouns::ConfigError;
use crate::telemetry;

/// The time after a change until the file is read. Editors and deployments change a file in several steps.
const SETTLE: Duration = Duration::from_millis(50);

/// After so many changes, the file is read although they go on.
const MOST_CHANGES: usize = 10;

/// How often the file is read even if no change was seen: some file systems report none.
const POLL: Duration = Duration::from_secs(10);

/// A file of limits that is watched. A new version is read within a second.
///
/// - Its directory is watched, and not the file. So an editor may write a new file and rename it, and Kubernetes may
///   swap the symbolic link of a `ConfigMap`.
/// - The file is read every 10 seconds, too: network file systems report no changes.
/// - A version counts once it has other text. One that cannot be read, or is no configuration, is reported once.
///
/// Replace a file by renaming another one. A file that is written in place is read when it has not changed for 50 ms,
/// and a part of a file can be a valid configuration with fewer limits.
///
/// ```no_run
/// use tollgate::config::{FileSource, LimitSet, Names};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::ConfigError> {
/// let mut file = FileSource::new("limits.toml")?;
/// let limits = LimitSet::new(file.read()?, Names::new())?;
/// limits.follow(file);
/// # Ok(())
/// # }
/// ```
pub struct FileSource {
    file: Arc<Mutex<Watched>>,
    /// What was read last, or why it could not be read.
    last: Option<Result<String, String>>,
    changes: Arc<Notify>,
    path: PathBuf,
    format: Format,
}

/// A file, and what is watched because of it.
struct Watched {
    path: PathBuf,
    /// `None` if the system has no watch left.
    watcher: Option<RecommendedWatcher>,
    directories: BTreeSet<PathBuf>,
}

impl FileSource {
    /// Creates a source for a file, which need not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the end of its name [is no known format](Format::of).
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, ConfigError> {
        let path = path.into();
        let format = Format::of(&path)?;
        let changes = Arc::new(Notify::new());
        let changed = Arc::clone(&changes);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Reading the file is an event, too.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                changed.notify_one();
            }
        });
        let watcher = watcher.inspect_err(|error| telemetry::unwatched(&path, error)).ok();
        let mut file = Watched { path: path.clone(), watcher, directories: BTreeSet::new() };
        file.watch();
        Ok(Self { file: Arc::new(Mutex::new(file)), last: None, changes, path, format })
    }

    /// Reads the file now.
    ///
    /// # Errors
    ///
    /// Returns an error like [`Config::read`].
    pub fn read(&mut self) -> Result<Config, ConfigError> {
        let text = lock(&self.file).read();
        self.last = Some(text.clone());
        self.parse(text)
    }

    fn parse(&self, text: Result<String, String>) -> Result<Config, ConfigError> {
        let text = text.map_err(ConfigError::new)?;
        Config::parse(&self.path.display().to_string(), &text, self.format)
    }

    /// Reads the file in a thread that may block: a network file system can hang. `None` if the runtime shuts down.
    async fn read_again(&self) -> Option<Result<String, String>> {
        let file = Arc::clone(&self.file);
        spawn_blocking(move || {
            let mut file = lock(&file);
            file.watch();
            file.read()
        })
        .await
        .ok()
    }
}

impl Watched {
    fn read(&self) -> Result<String, String> {
        std::fs::read_to_string(&self.path)
            .map_err(|error| unreadable(&self.path, &error).to_string())
    }

    /// Watches the directory of the file, and that of the file which a symbolic link names now.
    fn watch(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let files = [Some(self.path.clone()), std::fs::canonicalize(&self.path).ok()];
        let directories: BTreeSet<_> =
            files.iter().flatten().map(|path| directory_of(path).to_owned()).collect();
        for gone in self.directories.difference(&directories) {
            // It may have been removed.
            drop(watcher.unwatch(gone));
        }
        self.directories.retain(|directory| directories.contains(directory));
        for directory in directories {
            if self.directories.contains(&directory) {
                continue;
            }
            match watcher.watch(&directory, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.directories.insert(directory)),
                Err(error) => telemetry::unwatched(&directory, &error),
            }
        }
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn lock(file: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConfigSource for FileSource {
    async fn next(&mut self) -> Option<Result<Config, ConfigError>> {
        loop {
            // A change that was missed is found by the next poll.
            if self.last.is_some() && timeout(POLL, self.changes.notified()).await.is_ok() {
                // Other files in a directory may change all the time.
                for _ in 0..MOST_CHANGES {
                    if timeout(SETTLE, self.changes.notified()).await.is_err() {
                        break;
                    }
                }
            }
            let mut text = self.read_again().await?;
            if text.is_err() {
                // It may be between two names.
                sleep(SETTLE).await;
                text = self.read_again().await?;
            }
            if self.last.as_ref() != Some(&text) {
                self.last = Some(text.clone());
                return Some(self.parse(text));
            }
        }
    }
}

impl fmt::Debug for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSource").field("path", &self.path).finish_non_exhaustive()
    }
}
