//! Schemas of parameters that several kernels share, narrowed to the ones that a kernel accepts. So a scenario is refused at its
//! check, and not when the kernel is built. `limits` contains the checks of values.

use std::ops::RangeInclusive;

use schemars::Schema;
use serde_json::{Map, Value};

/// Removes parameters that have no meaning for this kernel.
pub(crate) fn without(mut schema: Schema, keys: &[&str]) -> Schema {
    if let Some(properties) = properties(&mut schema) {
        properties.retain(|key, _| !keys.contains(&key.as_str()));
    }
    schema
}

/// Sets tighter limits on a whole number, which must be a multiple of the minimum.
pub(crate) fn stepped(schema: Schema, key: &str, range: RangeInclusive<usize>) -> Schema {
    let step = *range.start();
    let mut schema = bounded(schema, key, range);
    if let Some(property) = property(&mut schema, key) {
        property.insert("multipleOf".into(), step.into());
    }
    schema
}

/// Sets tighter limits on a number.
pub(crate) fn bounded(mut schema: Schema, key: &str, range: RangeInclusive<usize>) -> Schema {
    if let Some(property) = property(&mut schema, key) {
        property.insert("minimum".into(), (*range.start()).into());
        property.insert("maximum".into(), (*range.end()).into());
    }
    schema
}

fn properties(schema: &mut Schema) -> Option<&mut Map<String, Value>> {
    schema.get_mut("properties")?.as_object_mut()
}

fn property<'a>(schema: &'a mut Schema, key: &str) -> Option<&'a mut Map<String, Value>> {
    properties(schema)?.get_mut(key)?.as_object_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemars::{schema_for, JsonSchema};

    #[derive(JsonSchema)]
    #[allow(dead_code)]
    struct Some {
        size: usize,
        other: usize,
    }

    #[test]
    fn a_narrowed_schema_keeps_the_rest() {
        let schema = stepped(without(schema_for!(Some), &["other"]), "size", 512..=4096);
        let size = &schema.get("properties").expect("an object")["size"];
        assert_eq!((&size["minimum"], &size["maximum"], &size["multipleOf"]), (&512.into(), &4096.into(), &512.into()));
        assert!(schema.get("properties").expect("an object").get("other").is_none());
    }
}
