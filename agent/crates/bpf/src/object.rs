//! The compiled programs, which the executable carries with it.

use thiserror::Error;

include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// How to get an agent that has them: said to those who installed a package, too, who may have no Makefile.
pub const REMEDY: &str = "use an agent built with clang, libbpf-dev and linux-libc-dev; \
    'make setup' in a clone of Partywall installs these and builds it";

/// Why an object is not there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("this agent was built without eBPF programs ({why}); {REMEDY}")]
pub struct Absent {
    /// What the build said.
    pub why: &'static str,
}

/// Whether the programs are there.
///
/// # Errors
/// [`Absent`] if the agent was built without clang.
pub fn built() -> Result<(), Absent> {
    ABSENT.map_or(Ok(()), |why| Err(Absent { why }))
}

/// The object compiled from `agent/bpf/NAME.bpf.c`.
///
/// # Errors
/// [`Absent`] if the agent was built without clang.
///
/// # Panics
/// If no source has this name: a mistake in the agent, not of its user.
pub fn object(name: &str) -> Result<&'static [u8], Absent> {
    built()?;
    let found = OBJECTS.iter().find(|(known, _)| *known == name);
    Ok(found.unwrap_or_else(|| panic!("agent/bpf/{name}.bpf.c is not there")).1)
}
