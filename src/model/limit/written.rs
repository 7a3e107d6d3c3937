//! Values of files that are written with a unit.

use std::fmt;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};

/// A string with a unit. A number, which has none, is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Written(pub(crate) String);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl Visitor<'_> for TextVisitor {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string with a unit, such as the quota \"5/15m\" or the time \"15m\"")
            }

            fn visit_str<E>(self, text: &str) -> Result<Written, E> {
                Ok(Written(text.to_owned()))
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}
