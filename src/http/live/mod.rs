//! Limits from a configuration, which changes while requests are in flight.

mod changes;
mod compile;
mod names;
mod pattern;
mod plans;
mod segments;
mod set;
mod spellings;
mod table;
mod version;
mod view;

pub use self::names::Names;
pub(super) use self::pattern::RequestRoute;
pub(super) use self::plans::LookedUpPlans;
pub use self::set::LimitSet;
pub(super) use self::version::{Asks, Version};
pub(super) use self::view::LimitSetView;
