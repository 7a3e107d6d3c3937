//! A file that is watched.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::ConfigSource;
use crate::configuration::parse::read;
use crate::configuration::{Config, Format};
use crate::telemetry;
use crate::units::{ConfigError, Mutex};

/// The time after a change until the file is read. Editors and deployments change a file in several
/// steps.
const QUIET_FOR: Duration = Duration::from_millis(50);

/// After so many changes, the file is read although they go on.
const MOST_CHANGES: usize = 10;

/// How often the file is read even if no change was seen, because some file systems report none.
const POLL: Duration = Duration::from_secs(10);

/// A file of limits that is watched. A new version is read within a second.
///
/// - Its directory is watched, and not the file. So an editor may write a new file and rename it,
///   and Kubernetes may swap the symbolic link of a `ConfigMap`.
/// - The file is also read every 10 seconds, because network file systems report no changes.
/// - A version is new if its text differs. One that cannot be read, or is not a configuration, is
///   reported once.
///
/// Replace a file by renaming another one. A file that is written in place is read when it has not
/// changed for 50 ms, and a part of a file can be a valid configuration with fewer limits.
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
    file: Arc<Mutex<WatchedFile>>,
    /// The text that was read last, or why it could not be read.
    last: Option<Result<String, String>>,
    changes: Arc<Notify>,
    path: PathBuf,
    format: Format,
}

/// A file, and what is watched because of it.
struct WatchedFile {
    path: PathBuf,
    changes: Arc<Notify>,
    /// `None` if the system has no watch left.
    watcher: Option<RecommendedWatcher>,
    /// `true` if it was reported that the file cannot be watched, since it last could be.
    is_reported: bool,
}

impl FileSource {
    /// Creates a source for a file, which need not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the end of its name [is not a known format](Format::from_path).
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, ConfigError> {
        let path = path.into();
        let format = Format::from_path(&path)?;
        let changes = Arc::new(Notify::new());
        let watcher = None;
        let is_reported = false;
        let mut file = WatchedFile {
            path: path.clone(),
            changes: Arc::clone(&changes),
            watcher,
            is_reported,
        };
        file.watch();
        Ok(Self {
            file: Arc::new(Mutex::new(file)),
            last: None,
            changes,
            path,
            format,
        })
    }

    /// Reads the file now.
    ///
    /// # Errors
    ///
    /// Returns an error like [`Config::read`].
    pub fn read(&mut self) -> Result<Config, ConfigError> {
        let text = self.file.lock().read();
        self.last = Some(text.clone());
        self.parse(text)
    }

    fn parse(&self, text: Result<String, String>) -> Result<Config, ConfigError> {
        let text = text.map_err(ConfigError::new)?;
        Config::parse(&self.path.display().to_string(), &text, self.format)
    }

    /// Reads the file in a thread that may block, because a network file system can hang. `None` if
    /// the runtime shuts down.
    async fn read_again(&self) -> Option<Result<String, String>> {
        let file = Arc::clone(&self.file);
        spawn_blocking(move || {
            let mut file = file.lock();
            file.watch();
            file.read()
        })
        .await
        .ok()
    }
}

impl WatchedFile {
    fn read(&self) -> Result<String, String> {
        read(&self.path).map_err(|error| error.to_string())
    }

    /// Watches the directories of the file and of the symbolic links that lead to it. The watcher
    /// is made anew each time, because a directory of that name may be another one now.
    fn watch(&mut self) {
        let watcher = self.new_watcher();
        if let Err((path, error)) = &watcher
            && !self.is_reported
        {
            telemetry::unwatched(path, error);
        }
        self.is_reported = watcher.is_err();
        self.watcher = watcher.ok();
    }

    fn new_watcher(&self) -> Result<RecommendedWatcher, (PathBuf, notify::Error)> {
        let changes = Arc::clone(&self.changes);
        let changed = move |event: notify::Result<Event>| {
            // Reading the file is also an event.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                changes.notify_one();
            }
        };
        let unwatched = |path: &Path| {
            let path = path.to_owned();
            move |error| (path, error)
        };
        let mut watcher = notify::recommended_watcher(changed).map_err(unwatched(&self.path))?;
        for directory in directories_of(&self.path) {
            watcher
                .watch(&directory, RecursiveMode::NonRecursive)
                .map_err(unwatched(&directory))?;
        }
        Ok(watcher)
    }
}

/// The directories in which a change can change the file: its own, the directory of the file that a
/// link names, and the directories of links among their parents.
fn directories_of(path: &Path) -> BTreeSet<PathBuf> {
    let real = std::fs::canonicalize(path).ok();
    let links = path
        .ancestors()
        .skip(1)
        .filter(|parent| parent.is_symlink());
    // A directory with two names is watched once.
    let directory = |file: &Path| {
        let directory = directory_of(file);
        std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned())
    };
    [Some(path), real.as_deref()]
        .into_iter()
        .flatten()
        .chain(links)
        .map(directory)
        .collect()
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

impl ConfigSource for FileSource {
    async fn next(&mut self) -> Option<Result<Config, ConfigError>> {
        loop {
            // A change that was missed is found by the next poll.
            if self.last.is_some() && timeout(POLL, self.changes.notified()).await.is_ok() {
                // Other files in a directory may change all the time.
                for _ in 0..MOST_CHANGES {
                    if timeout(QUIET_FOR, self.changes.notified()).await.is_err() {
                        break;
                    }
                }
            }
            let mut text = self.read_again().await?;
            if text.is_err() {
                // A rename may be in progress.
                sleep(QUIET_FOR).await;
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
        f.debug_struct("FileSource")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
