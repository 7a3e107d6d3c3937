//! Files of limits: their format, their errors, and where new versions come from. Nothing here knows HTTP.

mod field;
mod file;
mod parse;
mod schema;
mod source;

pub(crate) use self::field::Field;
pub use self::file::Config;
pub(crate) use self::file::{
    Changes, CostConfig, KeyConfig, LimitConfig, Match, OneOrMany, PlanConfig,
};
pub use self::parse::Format;
pub use self::source::{ConfigSource, FileSource};
