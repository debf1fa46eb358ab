#![forbid(unsafe_code)]
//! Kernels of work: loops that use one resource. Measured, a kernel is a probe; paced, it is a stressor; the loop is the
//! same. Deliberately not here: threads, pacing, recording of slices, all of which belong to the capabilities above.
//!
//! One file a kernel. Adding one touches that file and the list [`ALL`].

mod address;
mod batch;
mod blocks;
mod cache;
mod chance;
mod context_switch;
mod contract;
mod cpu_cache;
mod disk;
mod float;
mod integer;
mod limits;
mod matrix_vector;
mod memory_bandwidth;
mod memory_latency;
mod memory_space;
mod noise;
mod null;
mod pace;
mod peer;
mod process_creation;
mod quantum;
mod request;
mod ring;
pub mod room;
mod shared_memory;
mod stream;
mod syscall;
#[cfg(test)]
mod testing;
mod udp_send;
mod wake_up;

pub use contract::{
    Build, Entry, Environment, Figure, Kernel, KernelError, KernelInfo, Latency, Params, Resource, Roles, Settle, Sink, Unit,
};

/// Every kernel, in the order in which they are shown.
pub const ALL: &[Entry] = &[
    null::ENTRY,
    integer::ENTRY,
    float::ENTRY,
    matrix_vector::ENTRY,
    quantum::ENTRY,
    wake_up::ENTRY,
    cache::ENTRY,
    memory_latency::ENTRY,
    memory_bandwidth::READ,
    memory_bandwidth::WRITE,
    memory_bandwidth::COPY,
    memory_bandwidth::SCALE,
    memory_bandwidth::TRIAD,
    memory_space::ENTRY,
    stream::PIPE,
    stream::UNIX_SOCKET,
    stream::TCP_LOOPBACK,
    shared_memory::ENTRY,
    disk::READ,
    disk::REREAD,
    disk::WRITE,
    disk::REWRITE,
    disk::DIRECT_READ,
    disk::DIRECT_WRITE,
    udp_send::ENTRY,
    stream::TCP_STREAM,
    request::UDP_REQUEST,
    request::TCP_REQUEST,
    syscall::ENTRY,
    context_switch::ENTRY,
    process_creation::ENTRY,
];

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
