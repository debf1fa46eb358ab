#![forbid(unsafe_code)]
//! Records of a workload: slices of work with their times, and the latencies of the operations in them. A worker pushes into a
//! [`Recorder`], and another thread drains its [`Tape`].

mod histogram;
mod slice;

pub use histogram::{bucket_bounds, bucket_of, Histogram, LatencyCounts};
pub use slice::{Recorder, Slice, Tape};
