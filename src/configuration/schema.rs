//! The JSON Schema of a file of limits.
#![cfg(feature = "schema")]

use schemars::transform::{RecursiveTransform, Transform};
use schemars::{Schema, schema_for};
use serde_json::Value;

use super::Config;

impl Config {
    /// The JSON Schema of a file of limits, with which editors complete fields and CI checks files.
    ///
    /// ```
    /// let schema = tollgate::config::Config::json_schema();
    /// assert!(schema.contains("A limit, the requests that it applies to"));
    /// ```
    #[must_use]
    pub fn json_schema() -> String {
        let mut schema = schema_for!(Config);
        RecursiveTransform(brief).transform(&mut schema);
        // A schema is a tree of strings, so it can be written.
        serde_json::to_string_pretty(&schema).unwrap_or_default()
    }
}

/// Shortens a description to its first paragraph, without links of Rust's documentation.
fn brief(schema: &mut Schema) {
    if let Some(Value::String(description)) = schema.get_mut("description") {
        let paragraph = description
            .split("\n\n")
            .next()
            .unwrap_or_default()
            .replace('\n', " ");
        let mut parts = paragraph.split("](");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            text.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
        }
        *description = text.replace(['[', ']'], "");
    }
}
