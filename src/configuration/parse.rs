//! From the text of a file to its limits.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::text::{SourceText, TextOrigin};
use super::{Config, Field, Format};
use crate::units::ConfigError;

/// The largest text, in bytes, far more than 255 limits take.
pub(crate) const MAX_TEXT: usize = 1 << 20;

impl Config {
    /// Parses a text. Errors name the line and the field.
    ///
    /// `name` is the place of the text in errors, such as the path of the file.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not of this format, or a field is missing, unknown or of
    /// another type. What the fields say is checked when a [`LimitSet`](crate::config::LimitSet) is
    /// made of them.
    pub fn parse(name: &str, text: &str, format: Format) -> Result<Self, ConfigError> {
        if text.len() > MAX_TEXT {
            return Err(ConfigError::new(format!(
                "{name}: the text is larger than 1 MiB; write fewer limits"
            )));
        }
        let text = SourceText {
            name: name.to_owned(),
            text: text.to_owned(),
            format,
        };
        let mut config: Self = text.read()?;
        config.origin = TextOrigin(Some(Arc::new(text)));
        Ok(config)
    }

    /// Reads a file. Its name says its [format](Format::from_path).
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or like [`parse`](Self::parse).
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let format = Format::from_path(path)?;
        let text = read(path)?;
        Self::parse(&path.display().to_string(), &text, format)
    }

    /// An error about a field.
    pub(crate) fn error_at(&self, field: &Field, error: &ConfigError) -> ConfigError {
        match &self.origin.0 {
            Some(text) => text.error(text.line_of(field), &field.to_string(), error),
            None => ConfigError::new(format!("`{field}`: {error}")),
        }
    }
}

/// The text of a file. A pipe, which would be waited for, is an error, and so is a file that is
/// larger than any configuration.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let wrong = |why: &dyn fmt::Display| {
        ConfigError::new(format!(
            "{}: the file cannot be read: {why}",
            path.display()
        ))
    };
    let metadata = std::fs::metadata(path).map_err(|error| wrong(&error))?;
    if !metadata.is_file() {
        return Err(wrong(&"it is no regular file"));
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| wrong(&error))?;
    let more_than_all = u64::try_from(MAX_TEXT)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    file.take(more_than_all)
        .read_to_string(&mut text)
        .map_err(|error| wrong(&error))?;
    Ok(text)
}
