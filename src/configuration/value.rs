//! Values that are written in several ways.
//!
//! Their deserializers are not derived. Of an untagged enum, an error says neither what is
//! wrong, nor where. With `serde-untagged`, an error inside of a value loses its line.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

use crate::model::OnStoreFailure;

/// A list, and not nothing, which YAML takes for an empty one, because a file may end there.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    list: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "a list (in TOML, each element begins with two brackets, such as `[[limits]]`)",
            )
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
            elements(list)
        }

        fn visit_unit<E: Error>(self) -> Result<Vec<T>, E> {
            Err(E::custom("it is empty; write a list, or `[]` for none"))
        }
    }

    list.deserialize_any(List(PhantomData))
}

/// A whole number. The names of Rust's types are not for operators.
pub(super) fn number<'de, D: Deserializer<'de>, T: TryFrom<u64>>(number: D) -> Result<T, D::Error> {
    struct Whole<T>(PhantomData<T>);

    impl<T: TryFrom<u64>> Visitor<'_> for Whole<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let holds = |most: u64| T::try_from(most).is_ok();
            f.write_str(match () {
                () if !holds(u64::from(u8::MAX) + 1) => "a percentage from 0 to 100",
                () if !holds(u64::from(u32::MAX) + 1) => "a whole number from 0 to 4294967295",
                () => "a whole number",
            })
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
            let wrong = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
            T::try_from(number).map_err(wrong)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
            match u64::try_from(number) {
                Ok(number) => self.visit_u64(number),
                Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
            }
        }
    }

    number.deserialize_any(Whole(PhantomData))
}

/// The same, of a field that may be missing.
pub(super) fn maybe_number<'de, D: Deserializer<'de>, T: TryFrom<u64>>(
    number: D,
) -> Result<Option<T>, D::Error> {
    self::number(number).map(Some)
}

/// A table of tables.
pub(super) fn tables<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    tables: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let tables = BTreeMap::<_, Element<T>>::deserialize(tables)?;
    Ok(tables
        .into_iter()
        .map(|(name, Element(table))| (name, table))
        .collect())
}

fn elements<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(list: A) -> Result<Vec<T>, A::Error> {
    let list = Vec::<Element<T>>::deserialize(SeqAccessDeserializer::new(list))?;
    Ok(list.into_iter().map(|Element(element)| element).collect())
}

/// A value of a list or a table. A list is none, because serde would take it for a table without
/// the names of its fields.
struct Element<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Element<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for One<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table, or a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
                T::deserialize(StrDeserializer::new(text))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_any(One(PhantomData)).map(Self)
    }
}

/// The policy of a limit, with its spellings in errors.
pub(super) fn on_store_failure<'de, D: Deserializer<'de>>(
    policy: D,
) -> Result<Option<OnStoreFailure>, D::Error> {
    Option::deserialize(policy).map_err(|error| {
        let mut why = error.to_string();
        if why.contains("variant, expected") {
            "the policy is incomplete".clone_into(&mut why);
        }
        D::Error::custom(format!(
            "{}; write \"fail_open\", \"fail_closed\" or {{ local = {{ replicas = 3 }} }}",
            why.trim_end()
        ))
    })
}

/// A value, or a list of values.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(untagged))]
#[serde(untagged)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(#[cfg_attr(feature = "schema", schemars(length(min = 1)))] Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one value, or a list of values")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                T::deserialize(StrDeserializer::new(text)).map(OneOrMany::One)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(OneOrMany::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                let list: Vec<T> = elements(list)?;
                match list.is_empty() {
                    true => Err(A::Error::custom(
                        "the list is empty; write at least one value",
                    )),
                    false => Ok(OneOrMany::Many(list)),
                }
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

/// The key by which requests are counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(untagged))]
#[serde(untagged)]
pub(crate) enum KeyConfig {
    /// The names of extractors. Their keys are joined.
    Joined(OneOrMany<String>),
    /// The first extractor that finds a key.
    FirstOf(FirstOf),
}

/// Extractors that are tried one after another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct FirstOf {
    /// Names of extractors, or lists of names, whose keys are joined.
    pub(crate) first_of: Vec<OneOrMany<String>>,
}

impl<'de> Deserialize<'de> for KeyConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = KeyConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an extractor, a list of names, or `{ first_of = [...] }`")
            }

            fn visit_str<E>(self, name: &str) -> Result<KeyConfig, E> {
                Ok(KeyConfig::Joined(OneOrMany::One(name.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<KeyConfig, A::Error> {
                OneOrMany::deserialize(SeqAccessDeserializer::new(list)).map(KeyConfig::Joined)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<KeyConfig, A::Error> {
                FirstOf::deserialize(MapAccessDeserializer::new(map)).map(KeyConfig::FirstOf)
            }
        }

        deserializer.deserialize_any(KeyVisitor)
    }
}

/// The cost of a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(untagged))]
#[serde(untagged)]
pub(crate) enum CostConfig {
    Units(u32),
    /// The name of a function.
    Named(String),
}

impl<'de> Deserialize<'de> for CostConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let cost = serde_json::Value::deserialize(deserializer)?;
        let units = cost.as_u64().and_then(|units| u32::try_from(units).ok());
        match (units, cost) {
            (Some(units), _) => Ok(Self::Units(units)),
            (None, serde_json::Value::String(name)) => Ok(Self::Named(name)),
            (None, other) => Err(D::Error::custom(format!(
                "it is `{other}`; write units, from 0 to 4294967295, or the name of a function"
            ))),
        }
    }
}
