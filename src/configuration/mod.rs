//! Files of limits: their format, their errors, and where new versions come from. Nothing here knows HTTP.

mod field;
mod file;
mod parse;
mod schema;
mod source;
mod value;

pub(crate) use self::field::Field;
pub use self::file::Config;
pub(crate) use self::file::{Changes, LimitConfig, Match, PlanConfig};
pub use self::parse::Format;
pub use self::source::{ConfigSource, FileSource};
pub(crate) use self::value::{CostConfig, KeyConfig, OneOrMany};
