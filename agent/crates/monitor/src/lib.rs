#![forbid(unsafe_code)]
//! Readers of kernel counters, on the clock that every record shares. A [`Reader`] opens its files once, tells what it
//! can read in a header, and then reads a row whenever it is asked. Values are what the kernel counts since it booted
//! (totals) or says of this moment (gauges), in base units. Deliberately not here: rates, differences and judgement,
//! which belong to whoever knows which slot a sample falls in.

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
