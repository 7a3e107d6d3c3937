//! Files of limits: their format, their errors, and where new versions come from. Nothing here
//! knows HTTP.

mod check;
mod config;
mod field;
#[cfg(feature = "yaml")]
mod indentation;
mod override_config;
mod parse;
mod quota_schema;
mod schema;
mod source;
mod text;
mod value;

pub(crate) use self::check::{Misplaced, PlanRule};
pub use self::config::Config;
pub(crate) use self::config::{LimitConfig, Match, PlanConfig, UnknownPlan};
pub(crate) use self::field::Field;
pub(crate) use self::override_config::OverrideConfig;
pub(crate) use self::parse::MAX_TEXT;
pub use self::source::{ConfigSource, FileSource};
pub use self::text::Format;
pub(crate) use self::value::{CostConfig, KeyConfig, OneOrMany};
