//! The text of a file in one of its formats, and the lines of its fields.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};

use super::Field;
use crate::units::ConfigError;
use crate::units::did_you_mean::did_you_mean;

/// The format of a file of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// TOML: files whose names end with `.toml`.
    Toml,
    /// JSON: files whose names end with `.json`.
    Json,
    /// YAML: files whose names end with `.yaml` or `.yml`.
    #[cfg(feature = "yaml")]
    Yaml,
}

impl Format {
    /// The format of a file, by the end of its name.
    ///
    /// # Errors
    ///
    /// Returns an error if the end is unknown, or its format needs a feature that is off.
    pub fn from_path(path: &Path) -> Result<Self, ConfigError> {
        let end = path
            .extension()
            .and_then(|end| end.to_str())
            .unwrap_or_default();
        match end.to_ascii_lowercase().as_str() {
            "toml" => Ok(Self::Toml),
            "json" => Ok(Self::Json),
            #[cfg(feature = "yaml")]
            "yaml" | "yml" => Ok(Self::Yaml),
            #[cfg(not(feature = "yaml"))]
            "yaml" | "yml" => Err(ConfigError::new(format!(
                "{}: for a file of this kind, enable the feature `yaml` of the crate `tollgate`",
                path.display()
            ))),
            _ => Err(ConfigError::new(format!(
                "{}: the format is not known; name the file `.toml`, `.yaml`, `.yml` or `.json`",
                path.display()
            ))),
        }
    }
}

/// Names that a field has elsewhere, such as on the command line.
const OTHER_NAMES: [(&str, &str); 3] = [("for", "until"), ("from", "starts"), ("tz", "time_zone")];

/// Where a configuration was read, so that errors name the line.
#[derive(Clone, Debug, Default)]
pub(super) struct TextOrigin(pub(super) Option<Arc<SourceText>>);

#[derive(Debug)]
pub(super) struct SourceText {
    /// A file, or another place.
    pub(super) name: String,
    pub(super) text: String,
    pub(super) format: Format,
}

/// Two configurations are equal wherever they were read.
impl PartialEq for TextOrigin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl SourceText {
    /// Reads the values of the text.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        match self.format {
            Format::Toml => {
                let file = toml::Deserializer::parse(&self.text)
                    .map_err(|error| self.error(self.toml_line(&error), "", &error.message()))?;
                with_path(file).map_err(|(field, error)| {
                    self.error(self.toml_line(&error), &field, &error.message())
                })
            }
            Format::Json => {
                let mut file = serde_json::Deserializer::from_str(&self.text);
                let values = with_path(&mut file).map_err(|(field, error)| {
                    self.error(json_line(&error), &field, &without_place(&error))
                })?;
                let end = file.end();
                end.map_err(|error| self.error(json_line(&error), "", &without_place(&error)))?;
                Ok(values)
            }
            #[cfg(feature = "yaml")]
            Format::Yaml => {
                let mut field = String::new();
                serde_saphyr::with_deserializer_from_str(&self.text, |file| {
                    with_path(file).map_err(|(at, error)| {
                        field = at;
                        error
                    })
                })
                .map_err(|error| {
                    let mut why = yaml_message(&error);
                    if let Some(hint) = super::indentation::hint(&self.text, &why) {
                        why = format!("{why}; {hint}");
                    }
                    self.error(yaml_line(&error), &field, &why)
                })
            }
        }
    }

    /// The line of a field.
    pub(super) fn line_of(&self, field: &Field) -> Option<usize> {
        match self.format {
            Format::Toml => {
                let file = toml::Deserializer::parse(&self.text).ok()?;
                self.toml_line(&field.raise_at(file).err()?)
            }
            Format::Json => {
                let mut file = serde_json::Deserializer::from_str(&self.text);
                json_line(&field.raise_at(&mut file).err()?)
            }
            #[cfg(feature = "yaml")]
            Format::Yaml => {
                let found: Result<(), _> =
                    serde_saphyr::with_deserializer_from_str(&self.text, |file| {
                        field.raise_at(file)
                    });
                yaml_line(&found.err()?)
            }
        }
    }

    /// An error of this text.
    pub(super) fn error(
        &self,
        line: Option<usize>,
        field: &str,
        why: &dyn fmt::Display,
    ) -> ConfigError {
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        let mut why = why.to_string();
        if why == "missing field `limits`" {
            why += "; write `limits = []` if there are none";
        }
        if let Some(advice) = known_field_like(&why) {
            // More than twenty known fields may follow.
            let (unknown, known) = why.split_once(", expected").unwrap_or((&why, ""));
            why = match known {
                "" => format!("{unknown}; {advice}"),
                known => format!("{unknown}; {advice} Expected{known}"),
            };
        }
        // The path of a name that is there twice ends with `?`.
        let field = match field.trim_end_matches(".?") {
            "" | "." | "?" => String::new(),
            field => format!("`{field}`: "),
        };
        ConfigError::new(format!("{}{line}: {field}{why}", self.name))
    }

    fn toml_line(&self, error: &toml::de::Error) -> Option<usize> {
        let before = self.text.get(..error.span()?.start)?;
        Some(before.matches('\n').count().saturating_add(1))
    }
}

/// Advice for a field that serde does not know. Its message lists those that it knows.
fn known_field_like(message: &str) -> Option<String> {
    let (_, names) = message.split_once("unknown field `")?;
    let (unknown, known) = names.split_once('`')?;
    let known: Vec<_> = known.split('`').skip(1).step_by(2).collect();
    let meant = OTHER_NAMES.iter().find(|(other, _)| *other == unknown);
    if let Some((_, meant)) = meant.filter(|(_, meant)| known.contains(meant)) {
        return Some(format!("did you mean `{meant}`?"));
    }
    let known = known.into_iter().map(|it| (it.to_owned(), it.to_owned()));
    did_you_mean(unknown, known, 1)
}

/// Reads values. An error comes with the path of its field.
fn with_path<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    file: D,
) -> Result<T, (String, D::Error)> {
    let mut track = serde_path_to_error::Track::new();
    T::deserialize(serde_path_to_error::Deserializer::new(file, &mut track))
        .map_err(|error| (track.path().to_string(), error))
}

#[cfg(feature = "yaml")]
fn yaml_line(error: &serde_saphyr::Error) -> Option<usize> {
    error
        .location()
        .and_then(|location| usize::try_from(location.line()).ok())
}

/// The message, without advice for authors of parsers.
#[cfg(feature = "yaml")]
fn yaml_message(error: &serde_saphyr::Error) -> String {
    let mut message = without_place(&error.without_snippet());
    for advice in [", set DuplicateKeyPolicy", "; use from_multiple"] {
        if let Some(end) = message.rfind(advice) {
            message.truncate(end);
        }
    }
    message
}

fn json_line(error: &serde_json::Error) -> Option<usize> {
    Some(error.line()).filter(|line| *line > 0)
}

/// The message, whose place stands before it.
fn without_place(error: &dyn fmt::Display) -> String {
    let mut message = error.to_string();
    if let Some(place) = message.rfind(" at line ") {
        message.truncate(place);
    }
    message
}
