//! Maps each capability's errors to codes on the wire, by remedy: change the request, change the host, or try again later.

use std::fmt::Display;
use std::io;

use partywall_command::CommandError;
use partywall_facts::memory_changes::ChangesError;
use partywall_facts::memory_check::MemoryError;
use partywall_guard::GuardError;
use partywall_kernels::KernelError;
use partywall_load::{LoadError, SwitchError};
use partywall_stressor::{CalibrationError, ScheduleError};
use partywall_tracer::TraceError;
use partywall_wire::{Fault, CODE_FAILED, CODE_LACKING, CODE_PASSING, CODE_USAGE};

/// An error with a known kind.
pub(crate) trait Refuses: Display {
    /// One of the wire's codes.
    fn code(&self) -> i32;
}

/// An error in the form of the wire.
#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
pub(crate) fn refused(error: impl Refuses) -> Fault {
    Fault::new(error.code(), error.to_string())
}

impl Refuses for io::Error {
    fn code(&self) -> i32 {
        Fault::code_of(self)
    }
}

impl Refuses for KernelError {
    fn code(&self) -> i32 {
        match self {
            Self::Unknown { .. } | Self::Parameter { .. } | Self::Decode(_) => CODE_USAGE,
            Self::Host { source, .. } => source.code(),
        }
    }
}

impl Refuses for CommandError {
    fn code(&self) -> i32 {
        match self {
            Self::Empty => CODE_USAGE,
            Self::Start { source, .. } => source.code(),
        }
    }
}

impl Refuses for LoadError {
    fn code(&self) -> i32 {
        match self {
            Self::Program(_) | Self::Level(_) => CODE_USAGE,
            Self::Unreachable(_) => CODE_PASSING,
            Self::Room(_) => CODE_FAILED,
            Self::Files { source, .. } | Self::System(source) => source.code(),
        }
    }
}

impl Refuses for SwitchError {
    fn code(&self) -> i32 {
        CODE_USAGE
    }
}

impl Refuses for ScheduleError {
    fn code(&self) -> i32 {
        CODE_USAGE
    }
}

impl Refuses for CalibrationError {
    fn code(&self) -> i32 {
        match self {
            Self::Schedule(error) => error.code(),
            Self::Long(_) => CODE_USAGE,
            // The remedy is another size of its steps.
            Self::NoWork { .. } => CODE_FAILED,
            // It may have been killed.
            Self::Ended { .. } => CODE_PASSING,
        }
    }
}

impl Refuses for MemoryError {
    fn code(&self) -> i32 {
        match self {
            Self::TooMuch { .. } => CODE_LACKING,
            Self::NotFree { .. } => CODE_PASSING,
            Self::TooLittle { .. } => CODE_USAGE,
            Self::Host { source, .. } => source.code(),
        }
    }
}

impl Refuses for ChangesError {
    fn code(&self) -> i32 {
        match self {
            Self::Range { .. } | Self::Windows(_) | Self::Long(_) | Self::NotAFile(_) | Self::Large { .. } => CODE_USAGE,
            // The guest may not have started yet, or has just ended.
            Self::Empty { .. } | Self::Shrunk { .. } => CODE_PASSING,
            Self::Host { source, .. } => source.code(),
        }
    }
}

impl Refuses for GuardError {
    fn code(&self) -> i32 {
        GuardError::code(self)
    }
}

impl Refuses for TraceError {
    fn code(&self) -> i32 {
        match self {
            Self::Request(_) => CODE_USAGE,
            Self::Absent(_) | Self::Realtime | Self::Refused { .. } => CODE_LACKING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_forbids_differs_from_one_that_is_busy() {
        let said = |number| KernelError::Host { what: "/dev/x".into(), source: io::Error::from_raw_os_error(number) };
        // EACCES, EBUSY, ENOSPC.
        assert_eq!([13, 16, 28].map(|number| refused(said(number)).code), [CODE_LACKING, CODE_PASSING, CODE_FAILED]);
        let unknown = KernelError::Unknown { name: "x".into(), known: String::new() };
        assert_eq!(refused(unknown), Fault::new(CODE_USAGE, "no kernel is called \"x\"; there are "));
    }

    #[test]
    fn a_trace_is_refused_for_its_request_or_for_what_the_agent_lacks() {
        assert_eq!(TraceError::Request(vec!["hop 1: no".into()]).code(), CODE_USAGE);
        assert_eq!(TraceError::Refused { what: "hooking".into(), why: "EPERM".into() }.code(), CODE_LACKING);
    }
}
