#![forbid(unsafe_code)]
//! Kernels of work: loops that use one resource. Measured, a kernel is a probe; paced, it is a stressor; the loop is the
//! same. Deliberately not here: threads, pacing, recording of slices, all of which belong to the capabilities above.
//!
//! One file a kernel. Adding one touches that file and the list [`ALL`].

mod contract;
mod memory_copy;
mod null;

pub use contract::{Entry, Environment, Figure, Kernel, KernelError, KernelInfo, Latency, Params, Resource, Roles, Settle, Sink, Unit};

/// Every kernel, in the order in which they are shown.
pub const ALL: &[Entry] = &[null::ENTRY, memory_copy::ENTRY];

/// The kernel called `name`.
///
/// # Errors
/// [`KernelError::Unknown`] with the names there are.
pub fn find(name: &str) -> Result<&'static Entry, KernelError> {
    ALL.iter().find(|entry| entry.name == name).ok_or_else(|| KernelError::Unknown {
        name: name.to_owned(),
        known: ALL.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "),
    })
}
