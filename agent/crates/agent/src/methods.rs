//! The wire's table of methods, with their types: a function for each, dispatch, and the schema.

use partywall_facts as facts;
use partywall_wire::{self as wire, Fault, Request, Response, CODES, CODE_INTERNAL, CODE_METHOD, CODE_PARAMS, METHODS, PROTOCOL};
use schemars::schema_for;
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::{json, Map, Value};

use crate::monitor;

macro_rules! parameters_schema {
    () => {
        Value::Null
    };
    ($params:ty) => {
        json!(schema_for!($params))
    };
}

macro_rules! answered {
    ($answers:ident, $answer:ident, $given:ident,) => {
        value($answers.$answer()?)
    };
    ($answers:ident, $answer:ident, $given:ident, $params:ty) => {
        value($answers.$answer(parameters::<$params>($given)?)?)
    };
}

macro_rules! dispatch {
    ($($name:literal $answer:ident($($params:ty)?) -> $result:ty, only [$($capability:ident),*], needs [$($need:ident),*];)*) => {
        /// Implements each method of the table.
        pub(crate) trait Answers {
            $(
                #[doc = concat!("Answers `", $name, "`.")]
                fn $answer(&self $(, params: $params)?) -> Result<$result, Fault>;
            )*
        }

        /// Calls the method `name`.
        pub(crate) fn call(answers: &impl Answers, name: &str, params: Value) -> Result<Value, Fault> {
            match name {
                $($name => answered!(answers, $answer, params, $($params)?),)*
                _ => Err(Fault::new(CODE_METHOD, format!("unknown method {name:?}"))),
            }
        }

        /// Parameters and result of each method.
        fn types() -> Vec<(&'static str, Value, Value)> {
            vec![$(($name, parameters_schema!($($params)?), json!(schema_for!($result)))),*]
        }
    };
}

partywall_wire::methods!(dispatch);

fn parameters<P: DeserializeOwned>(given: Value) -> Result<P, Fault> {
    serde_json::from_value(given).map_err(|error| Fault::new(CODE_PARAMS, error.to_string()))
}

fn value(result: impl Serialize) -> Result<Value, Fault> {
    serde_json::to_value(result).map_err(|error| Fault::new(CODE_INTERNAL, format!("the result cannot be encoded: {error}")))
}

/// JSON Schema of all messages on the wire, and the codes of refusals.
pub(crate) fn schema() -> Value {
    let row = |((name, params, result), method): ((&'static str, Value, Value), &wire::Method)| {
        let row = json!({ "params": params, "result": result, "only": method.capabilities, "needs": method.needs });
        (name.to_owned(), row)
    };
    let methods: Map<String, Value> = types().into_iter().zip(METHODS).map(row).collect();
    json!({
        "protocol": PROTOCOL,
        "codes": CODES.iter().map(|(name, code)| ((*name).to_owned(), json!(code))).collect::<Map<_, _>>(),
        "request": schema_for!(Request),
        "response": schema_for!(Response),
        "methods": methods,
        "notifications": schema_for!(wire::Event),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_types_are_of_the_same_methods_in_the_same_order() {
        let (typed, rows): (Vec<_>, Vec<_>) = types().iter().map(|(name, ..)| *name).zip(METHODS.iter().map(|method| method.name)).unzip();
        assert_eq!(typed, rows);
        assert_eq!(types().len(), METHODS.len());
        assert_eq!(schema()["methods"]["guard.start"]["only"], json!(["guard"]));
    }
}
