//! The JSON Schema of a quota.
#![cfg(feature = "schema")]

use schemars::{Schema, SchemaGenerator, json_schema};

/// The schema of a quota that may be missing. The periods that can be parsed are more than it says.
pub(super) fn quota(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["string", "null"],
        "pattern": "^ *[0-9]+ */ *([0-9.]+ *)?[a-zµ]+[a-zµ0-9. ]*$",
        "examples": ["100/min", "5/15m", "10000/day"],
    })
}
