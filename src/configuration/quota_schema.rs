//! The JSON Schema of a quota.
#![cfg(feature = "schema")]

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The schema of a quota. The periods that can be parsed are more than it says.
pub(super) struct QuotaSchema;

impl JsonSchema for QuotaSchema {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Quota".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^ *[0-9]+ */ *([0-9.]+ *)?[a-zµ]+[a-zµ0-9. ]*$",
            "examples": ["100/min", "5/15m", "10000/day"],
        })
    }
}
