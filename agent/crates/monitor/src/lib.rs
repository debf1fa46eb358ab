#![forbid(unsafe_code)]
//! Reads kernel counters, with times on the clock of all records. A [`Reader`] opens its files once and returns a header with its
//! counters. Then it reads one row per call. Values are counts since boot (totals) or current states (gauges), in base units. The
//! controller computes rates and differences, because it knows the slot of each sample.

mod buffer;
mod counter;
mod keyed;
mod names;
mod reader;
mod sources;
mod table;
mod targets;
mod text;

pub use counter::{catalogue, CatalogueEntry, CounterInfo, CounterUnit, Kind, Sample};
pub use partywall_facts::cgroup::CgroupFolders;
pub use partywall_facts::Missing;
pub use partywall_kernels::Resource;
pub use reader::Reader;
pub use targets::{CgroupTarget, Targets};
