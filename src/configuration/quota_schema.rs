//! The JSON Schema of a quota, and of its start.
#![cfg(feature = "schema")]

use schemars::{Schema, SchemaGenerator, json_schema};

/// The schema of a quota that may be missing. The periods that can be parsed are more than it says.
pub(super) fn quota(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["string", "null"],
        "pattern": "^ *[0-9]+ */ *([0-9.]+ *)?[a-zµ]+[a-zµ0-9. ]*$",
        "examples": ["100/min", "5/15m", "10000/day", "10000/month"],
    })
}

/// The schema of the start of a window of the calendar, which may be missing.
pub(super) fn starts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [
            { "type": "integer", "minimum": 1, "maximum": 31 },
            { "type": ["string", "null"], "examples": ["monday", "15 06:00", "04-01"] },
        ],
    })
}
