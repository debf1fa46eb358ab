#![no_main]
//! The decoder of lines, and of each method's parameters, on whatever libFuzzer makes of the golden messages: a line is
//! refused with words, or what was read is written and read again unchanged.

use libfuzzer_sys::fuzz_target;
use partywall_wire as wire;
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| bytes.split(|&byte| byte == b'\n').for_each(line));

fn line(bytes: &[u8]) {
    match wire::decode(bytes) {
        Ok(request) => {
            let again = serde_json::to_vec(&request).expect("what was read can be written");
            assert_eq!(wire::decode(&again), Ok(request.clone()));
            params(&request.method, request.params);
        }
        Err((_, fault)) => assert!(!fault.message.is_empty()),
    }
    if let Ok(event) = serde_json::from_slice::<wire::Event>(bytes) {
        same(&event);
    }
}

/// By the method's own row in the table: what is read is written, and read again unchanged.
fn params(method: &str, params: Value) {
    let Some(method) = wire::Method::find(method) else { return };
    if let Ok(written) = method.read(params) {
        assert_eq!(method.read(written.clone()).expect("what was written can be read").to_string(), written.to_string());
    }
}

/// Written, read and written again it is the same text.
fn same<T: DeserializeOwned + Serialize>(value: &T) {
    let text = serde_json::to_string(value).expect("what was read can be written");
    let again: T = serde_json::from_str(&text).expect("what was written can be read");
    assert_eq!(serde_json::to_string(&again).expect("as before"), text);
}
