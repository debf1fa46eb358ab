#![forbid(unsafe_code)]
//! What a workload leaves behind: slices of work with their time, and the latencies of the operations in them.
//! Deliberately not here: who stores or sends them. A worker pushes into a [`Recorder`]; someone else drains its [`Tape`].

mod histogram;
mod slice;

pub use histogram::{bucket_bounds, bucket_of, DenseHistogram, Histogram};
pub use slice::{Recorder, Slice, Tape};
