//! Where new versions of a configuration come from.

mod file;

use std::future::Future;

use tokio::sync::watch;

pub use self::file::FileSource;
use super::Config;
use crate::units::ConfigError;

/// A source of new versions of a [`Config`], which a [`LimitSet`](crate::config::LimitSet) follows.
///
/// Implemented by [`FileSource`], by `RedisSource`, and by the receiver of a `tokio::sync::watch`
/// channel, for anything else:
///
/// ```
/// use tokio::sync::watch;
/// use tollgate::config::{Config, Format, LimitSet, Names};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::ConfigError> {
/// let text = r#"
///     limits = [{ name = "api", algorithm = "gcra", quota = "100/min", key = "peer_ip" }]
/// "#;
/// let config = Config::parse("the first version", text, Format::Toml)?;
/// let limits = LimitSet::new(config.clone(), Names::new())?;
/// let (sender, receiver) = watch::channel(config);
/// limits.follow(receiver);
/// // Whenever there is a new version:
/// sender.send_replace(Config::parse("the second", &text.replace("100", "200"), Format::Toml)?);
/// # Ok(())
/// # }
/// ```
pub trait ConfigSource: Send + 'static {
    /// Waits for the next version. `None` ends the source.
    ///
    /// An error is a version that cannot be read. It is reported, the limits stay as they are, and
    /// this is called again. So an error has to come once for each version, and not at once again.
    fn next(&mut self) -> impl Future<Output = Option<Result<Config, ConfigError>>> + Send;
}

impl ConfigSource for watch::Receiver<Config> {
    async fn next(&mut self) -> Option<Result<Config, ConfigError>> {
        self.changed().await.ok()?;
        Some(Ok(self.borrow_and_update().clone()))
    }
}
