//! Why a guard could not be started or kept up.

use std::fmt;
use std::io;

/// The thing, what was wrong with it, and the remedy.
#[derive(Debug)]
pub struct GuardError(String);

impl GuardError {
    pub(crate) fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }

    /// `thing`, and what the kernel said.
    pub(crate) fn kernel(thing: impl fmt::Display) -> impl FnOnce(io::Error) -> Self {
        move |error| Self(format!("{thing}: {error}{}", remedy(&error)))
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
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for GuardError {}
