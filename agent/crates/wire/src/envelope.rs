//! JSON-RPC's envelope, and the decoder of a line.

use std::{fmt, io};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Event;

/// Maximum length of a line in bytes. A longer line is refused and not buffered.
pub const MAX_LINE: usize = 64 << 20;
/// Maximum length of a line of all methods except `workload.start`, which carries a load's files.
pub const LONG_LINE: usize = 8 << 20;
/// Maximum values in one line. Except for strings, each value needs far more memory than its bytes in the line.
const VALUES_MAX: usize = 1 << 20;
/// The line is not valid JSON.
pub const CODE_PARSE: i32 = -32700;
/// The JSON is not a request of version 2.0.
pub const CODE_REQUEST: i32 = -32600;
/// No such method.
pub const CODE_METHOD: i32 = -32601;
/// The method's parameters cannot be decoded.
pub const CODE_PARAMS: i32 = -32602;
/// A bug in the agent.
pub const CODE_INTERNAL: i32 = -32603;
/// The request is valid but refused, for a lasting reason: repeating it does not help.
pub const CODE_FAILED: i32 = 1;
/// The agent was started without a capability that the method needs; see `serve --only`.
pub const CODE_DENIED: i32 = 2;
/// The request is invalid here and must be fixed.
pub const CODE_USAGE: i32 = 3;
/// The agent lacks a permission, or the host lacks something that the method needs.
pub const CODE_LACKING: i32 = 4;
/// Refused because of the current state: a later attempt may succeed.
pub const CODE_PASSING: i32 = 5;
/// All codes by name, for the schema.
pub const CODES: &[(&str, i32)] = &[
    ("parse", CODE_PARSE),
    ("request", CODE_REQUEST),
    ("method", CODE_METHOD),
    ("params", CODE_PARAMS),
    ("internal", CODE_INTERNAL),
    ("failed", CODE_FAILED),
    ("denied", CODE_DENIED),
    ("usage", CODE_USAGE),
    ("lacking", CODE_LACKING),
    ("passing", CODE_PASSING),
];

/// A request from the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Always `"2.0"`.
    pub jsonrpc: String,
    /// Chosen by the controller and repeated in the response.
    pub id: u64,
    /// For example `workload.start`.
    pub method: String,
    /// The method's parameters, an object.
    #[serde(default)]
    pub params: Value,
}

/// The response to a request, with exactly one of `result` and `error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Response {
    /// Always `"2.0"`.
    pub jsonrpc: String,
    /// The request's ID. `null` if the request could not be parsed.
    pub id: Option<u64>,
    /// The result of the method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The error, if the request failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
}

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    /// One of the `CODE_` constants.
    pub code: i32,
    /// A message for people: the thing, the value and the remedy.
    pub message: String,
}

/// A notification from the agent: an [`Event`] in JSON-RPC's envelope. It is serialised directly from the event, because slices and
/// samples are sent during measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Notification<'a> {
    jsonrpc: &'static str,
    #[serde(flatten)]
    event: &'a Event,
}

impl Response {
    /// The response to request `id`.
    #[must_use]
    pub fn new(id: Option<u64>, outcome: Result<Value, Fault>) -> Self {
        let (result, error) = match outcome {
            Ok(value) => (Some(value), None),
            Err(fault) => (None, Some(fault)),
        };
        Self { jsonrpc: "2.0".into(), id, result, error }
    }
}

impl<'a> Notification<'a> {
    /// A notification of `event`.
    #[must_use]
    pub fn new(event: &'a Event) -> Self {
        Self { jsonrpc: "2.0", event }
    }
}

impl Fault {
    /// A fault with `code`.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A fault with a lasting reason.
    pub fn failed(why: impl fmt::Display) -> Self {
        Self::new(CODE_FAILED, why.to_string())
    }

    /// A fault of an invalid request.
    pub fn usage(why: impl fmt::Display) -> Self {
        Self::new(CODE_USAGE, why.to_string())
    }

    /// A fault that depends on the current state.
    pub fn passing(why: impl fmt::Display) -> Self {
        Self::new(CODE_PASSING, why.to_string())
    }

    /// The same fault, with `what` before its message.
    #[must_use]
    pub fn about(self, what: impl fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// The code for a system error: a missing permission, something in use, or another error.
    #[must_use]
    pub fn code_of(error: &io::Error) -> i32 {
        use io::ErrorKind::{
            AddrInUse, ConnectionRefused, ConnectionReset, Interrupted, OutOfMemory, PermissionDenied, ResourceBusy, TimedOut, Unsupported,
            WouldBlock,
        };
        match error.kind() {
            PermissionDenied | Unsupported => CODE_LACKING,
            AddrInUse | ConnectionRefused | ConnectionReset | Interrupted | OutOfMemory | ResourceBusy | TimedOut | WouldBlock => {
                CODE_PASSING
            }
            _ => CODE_FAILED,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

/// The fields of a long line that are needed to check it.
#[derive(Deserialize)]
struct Head {
    id: Option<u64>,
    method: Option<String>,
}

/// Refuses a line that would need too much memory, before it is parsed.
fn check_size(line: &[u8]) -> Result<(), (Option<u64>, Fault)> {
    let values = count_values(line);
    if values > VALUES_MAX {
        return Err((None, Fault::new(CODE_REQUEST, format!("the message has {values} values; send at most {VALUES_MAX}"))));
    }
    if line.len() <= LONG_LINE {
        return Ok(());
    }
    let head: Head = serde_json::from_slice(line).map_err(|e| (None, Fault::new(CODE_PARSE, format!("not JSON: {e}"))))?;
    match head.method.as_deref() {
        Some("workload.start") => Ok(()),
        method => {
            let why = format!("the message for {} has {} bytes; send at most {LONG_LINE}", method.unwrap_or("no method"), line.len());
            Err((head.id, Fault::new(CODE_REQUEST, why)))
        }
    }
}

/// Approximate number of values in a line. Content of strings does not count.
fn count_values(line: &[u8]) -> usize {
    let (mut values, mut in_text, mut escaped) = (0, false, false);
    for &byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values
}

/// Parses one line.
///
/// # Errors
/// A fault that describes the problem, with the request's ID if it could be parsed.
pub fn decode(line: &[u8]) -> Result<Request, (Option<u64>, Fault)> {
    if line.len() > MAX_LINE {
        return Err((None, Fault::new(CODE_REQUEST, format!("the message has {} bytes; send at most {MAX_LINE}", line.len()))));
    }
    check_size(line)?;
    let value: Value = serde_json::from_slice(line).map_err(|e| (None, Fault::new(CODE_PARSE, format!("not JSON: {e}"))))?;
    let id = value.get("id").and_then(Value::as_u64);
    let request: Request = serde_json::from_value(value).map_err(|e| (id, Fault::new(CODE_REQUEST, format!("not a request: {e}"))))?;
    if request.jsonrpc == "2.0" {
        Ok(request)
    } else {
        Err((id, Fault::new(CODE_REQUEST, format!("jsonrpc is {:?}; this agent supports \"2.0\"", request.jsonrpc))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_without_params_has_null_params() {
        let request = decode(br#"{"jsonrpc":"2.0","id":7,"method":"clock"}"#).unwrap();
        assert_eq!((request.id, request.method.as_str(), request.params), (7, "clock", Value::Null));
    }

    #[test]
    fn a_broken_request_is_refused_with_its_id() {
        let (id, fault) = decode(br#"{"jsonrpc":"2.0","id":7}"#).unwrap_err();
        assert_eq!((id, fault.code), (Some(7), CODE_REQUEST));
        assert!(fault.message.contains("method"), "{}", fault.message);
    }

    #[test]
    fn another_version_is_refused() {
        let (id, fault) = decode(br#"{"jsonrpc":"1.0","id":7,"method":"clock"}"#).unwrap_err();
        assert_eq!((id, fault.code), (Some(7), CODE_REQUEST));
    }

    #[test]
    fn a_line_of_too_many_values_is_refused_unparsed() {
        let line = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"clock","params":[{}0]}}"#, "[],".repeat(VALUES_MAX / 2));
        let fault = decode(line.as_bytes()).unwrap_err().1;
        assert!(fault.message.contains("values; send at most"), "{}", fault.message);
    }

    #[test]
    fn content_of_strings_does_not_count_as_values() {
        assert_eq!(count_values(br#"{"a":"[,{\"[,{","b":[1,2]}"#), 4);
        let text = r#",\""#.repeat(VALUES_MAX);
        let line = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"clock","params":{{"text":"{text}"}}}}"#);
        assert_eq!(decode(line.as_bytes()).map(|request| request.id), Ok(7));
    }

    #[test]
    fn only_the_start_of_a_workload_may_be_a_long_line() {
        let line = |method| format!(r#"{{"method":"{method}","jsonrpc":"2.0","id":7,"params":{{"text":"{}"}}}}"#, "x".repeat(LONG_LINE));
        let (id, fault) = decode(line("monitor.start").as_bytes()).unwrap_err();
        assert_eq!((id, fault.code), (Some(7), CODE_REQUEST));
        assert!(fault.message.starts_with("the message for monitor.start has"), "{}", fault.message);
        assert!(decode(line("workload.start").as_bytes()).is_ok());
    }

    #[test]
    fn a_line_over_the_limit_is_refused_unread() {
        assert_eq!(decode(&vec![b' '; MAX_LINE + 1]).unwrap_err().1.code, CODE_REQUEST);
    }

    #[test]
    fn codes_distinguish_permissions_and_temporary_errors_from_the_rest() {
        let code = |number| Fault::code_of(&io::Error::from_raw_os_error(number));
        // EPERM, EACCES, EOPNOTSUPP; EAGAIN, EBUSY, ENOMEM, ECONNREFUSED; ENOENT, ENODEV, ENOSPC.
        assert_eq!([1, 13, 95].map(code), [CODE_LACKING; 3]);
        assert_eq!([11, 16, 12, 111].map(code), [CODE_PASSING; 4]);
        assert_eq!([2, 19, 28].map(code), [CODE_FAILED; 3]);
        let numbers: std::collections::HashSet<i32> = CODES.iter().map(|(_, code)| *code).collect();
        assert_eq!(numbers.len(), CODES.len());
    }

    #[test]
    fn a_faults_subject_comes_before_its_message() {
        assert_eq!(Fault::passing("it is busy").about("disk"), Fault::new(CODE_PASSING, "disk: it is busy"));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn what_was_written_is_read_back(id: u64, method in "[a-z.]{1,20}", text in ".{0,40}") {
            let request = Request { jsonrpc: "2.0".into(), id, method, params: serde_json::json!({ "text": text }) };
            prop_assert_eq!(decode(&serde_json::to_vec(&request).unwrap()), Ok(request));
        }
    }
}
