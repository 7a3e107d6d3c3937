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

/// The start of a window of the calendar: a day as a number, or a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct WrittenStart(pub(crate) String);

impl<'de> Deserialize<'de> for WrittenStart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StartVisitor;

        impl Visitor<'_> for StartVisitor {
            type Value = WrittenStart;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "the start of a day, week, month or year: a day of the month such as 15, or a \
                     text such as \"monday\", \"04-01\", \"06:00\" or \"15 06:00\"",
                )
            }

            fn visit_u64<E>(self, day: u64) -> Result<WrittenStart, E> {
                Ok(WrittenStart(day.to_string()))
            }

            fn visit_i64<E>(self, day: i64) -> Result<WrittenStart, E> {
                Ok(WrittenStart(day.to_string()))
            }

            fn visit_str<E>(self, text: &str) -> Result<WrittenStart, E> {
                Ok(WrittenStart(text.to_owned()))
            }
        }

        deserializer.deserialize_any(StartVisitor)
    }
}
