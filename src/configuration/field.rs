//! A field of a file, and the line where it is.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The place of a field, such as `limits[1].plans.pro.quota`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Field(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Name(String),
    Index(usize),
}

impl Field {
    /// The limit of this number, from 0.
    pub(crate) fn of_limit(number: usize) -> Self {
        Self::default().name("limits").index(number)
    }

    pub(crate) fn name(mut self, name: &str) -> Self {
        self.0.push(Step::Name(name.to_owned()));
        self
    }

    pub(crate) fn index(mut self, index: usize) -> Self {
        self.0.push(Step::Index(index));
        self
    }

    /// Finds the field in a file by an error that is raised there, because every format says where
    /// an error was raised.
    pub(super) fn raise_at<'de, D: Deserializer<'de>>(&self, file: D) -> Result<(), D::Error> {
        Raise(&self.0).deserialize(file)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            match step {
                Step::Name(name) if number == 0 => f.write_str(name)?,
                Step::Name(name) => write!(f, ".{}", name.escape_debug())?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

struct Raise<'a>(&'a [Step]);

impl<'de> DeserializeSeed<'de> for Raise<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // A value that is neither a table nor a list is an error by itself.
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Raise<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((Step::Name(name), rest)) = self.0.split_first() else {
            return Err(A::Error::custom("here"));
        };
        while let Some(key) = map.next_key::<String>()? {
            if key == *name {
                return map.next_value_seed(Raise(rest));
            }
            map.next_value::<IgnoredAny>()?;
        }
        // The field is missing, so the error names the place of its table.
        Err(A::Error::custom("here"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((Step::Index(index), rest)) = self.0.split_first() else {
            return Err(A::Error::custom("here"));
        };
        for _ in 0..*index {
            list.next_element::<IgnoredAny>()?;
        }
        list.next_element_seed(Raise(rest)).map(drop)
    }
}
