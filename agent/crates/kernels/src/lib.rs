#![forbid(unsafe_code)]
//! Kernels of work: loops that use one resource. A measured kernel is a probe, a paced one is a stressor; the loop is the same.
//! Threads, pacing and recording of slices belong to the capabilities.
//!
//! Each kernel has one file. Adding one changes that file and the list [`ALL`].

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
mod linpack;
mod matrix_vector;
mod memory_bandwidth;
mod memory_dirty;
mod memory_latency;
mod memory_space;
mod needs;
mod noise;
mod null;
mod pace;
mod peer;
pub mod peers;
mod process_creation;
mod quantum;
mod request;
mod ring;
mod schema;
mod shared_memory;
mod stream;
mod syscall;
#[cfg(test)]
mod testing;
mod udp_send;
mod wake_up;
pub mod worker;

pub use contract::{
    Build, Entry, Environment, Figure, Kernel, KernelError, KernelInfo, Latency, PacedBy, Params, Resource, Roles, Settle, Sink, Unit,
};
pub use needs::{Direction, Held, Holder, Implied, Needs, Requests, Source, Waits, Warning};

/// Every kernel, in display order.
pub const ALL: &[Entry] = &[
    null::ENTRY,
    integer::ENTRY,
    float::ENTRY,
    matrix_vector::ENTRY,
    linpack::ENTRY,
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
    memory_dirty::ENTRY,
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

/// The kernel named `name`.
///
/// # Errors
/// [`KernelError::Unknown`] with the known names.
pub fn find(name: &str) -> Result<&'static Entry, KernelError> {
    ALL.iter().find(|entry| entry.name == name).ok_or_else(|| KernelError::Unknown {
        name: name.to_owned(),
        known: ALL.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_kernel_is_listed_once_under_its_own_name() {
        let names: HashSet<_> = ALL.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(ALL.iter().all(|entry| (entry.info)().name == entry.name));
    }

    #[test]
    fn every_kernel_is_in_the_index_of_the_documentation() {
        let index = include_str!("../../../../docs/kernels/README.md");
        let missing: Vec<_> = ALL.iter().map(|entry| entry.name).filter(|name| !index.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/kernels/README.md does not name {missing:?}");
    }

    #[test]
    fn needs_name_only_parameters_that_the_kernel_has() {
        for entry in ALL {
            let info = (entry.info)();
            let known = |name: &str| info.params.get("properties").is_some_and(|properties| properties.get(name).is_some());
            let unknown: Vec<_> = parameters(&info.needs).into_iter().filter(|name| !known(name)).collect();
            assert!(unknown.is_empty(), "{} has no {unknown:?}", entry.name);
        }
    }

    fn parameters(needs: &Needs) -> Vec<&'static str> {
        let held = needs.memory.iter().flat_map(|held| held.parameters.iter().copied());
        let implied = needs.implied.iter().flat_map(|implied| {
            let from = match implied.from {
                Source::Constant { .. } => None,
                Source::Parameter { parameter, .. } => Some(parameter),
                Source::Cache { level, .. } => Some(level),
                Source::LargestCache { most, .. } => Some(most),
            };
            [Some(implied.parameter), from].into_iter().flatten()
        });
        let requests = needs.requests.iter().flat_map(|requests| {
            let bound = match requests.waits {
                Waits::Request | Waits::ReadAhead { .. } => None,
                Waits::WriteBack { bound } => Some(bound),
            };
            [Some(requests.size), Some(requests.depth), bound].into_iter().flatten()
        });
        held.chain(implied).chain(requests).collect()
    }

    #[test]
    fn every_kernel_has_its_own_activity() {
        let doing: HashSet<_> = ALL.iter().map(|entry| (entry.info)().doing).collect();
        assert_eq!(doing.len(), ALL.len());
        assert!(!doing.contains(""));
    }

    #[test]
    fn no_kernel_accepts_an_unknown_parameter() {
        for entry in ALL {
            let params = [("no-such-parameter".to_owned(), serde_json::json!(1))].into_iter().collect();
            let error = (entry.build)(&params, &testing::environment()).map(drop).expect_err(entry.name).to_string();
            assert!(error.contains("unknown field `no-such-parameter`"), "{}: {error}", entry.name);
        }
    }
}
