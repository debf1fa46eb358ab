//! Reasons why a guard could not be started or kept running.

use std::fmt;
use std::io;

use partywall_wire::{Fault, CODE_FAILED, CODE_LACKING, CODE_USAGE};

/// Names the thing, what is wrong with it, and the remedy.
#[derive(Debug)]
pub struct GuardError {
    code: i32,
    why: String,
}

impl GuardError {
    pub(crate) fn new(what: impl fmt::Display) -> Self {
        Self { code: CODE_FAILED, why: what.to_string() }
    }

    /// The request is invalid.
    pub(crate) fn usage(what: impl fmt::Display) -> Self {
        Self { code: CODE_USAGE, why: what.to_string() }
    }

    /// The host, or this agent, lacks what a guard needs.
    pub(crate) fn lacking(what: impl fmt::Display) -> Self {
        Self { code: CODE_LACKING, why: what.to_string() }
    }

    /// Names `thing`, and gives the kernel's error.
    pub(crate) fn kernel(thing: impl fmt::Display) -> impl FnOnce(io::Error) -> Self {
        move |error| Self { code: Fault::code_of(&error), why: format!("{thing}: {error}{}", remedy(&error)) }
    }

    /// The wire code of this error.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.code
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; a guard needs root",
        io::ErrorKind::NotFound => "; is it running, and is the name right?",
        _ if error.raw_os_error() == Some(19) => "; `ip link` lists what there is",
        _ => "",
    }
}

impl fmt::Display for GuardError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.why)
    }
}

impl std::error::Error for GuardError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_operation_is_lacking_and_a_missing_device_is_failed() {
        let code = |number| GuardError::kernel("eth0")(io::Error::from_raw_os_error(number)).code();
        // EPERM, EBUSY, ENODEV.
        assert_eq!([1, 16, 19].map(code), [CODE_LACKING, partywall_wire::CODE_PASSING, CODE_FAILED]);
    }
}
