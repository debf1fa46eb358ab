#![forbid(unsafe_code)]
//! Aligns the records of a path's hops: finds which records at different hops are the same packet, its delay from hop to hop, and
//! packets that were lost, duplicated or reordered (VITS, section 4.5). Pure and streaming: records are added by time, finished
//! packets are reported, and a horizon limits memory. The caller provides records, with times on a common clock.
//!
//! [`Merge`] sorts records of several sources, [`Aligner`] matches them and reports results to a [`Sink`], and [`Counts`] is the sink
//! that counts.

mod aligner;
mod counts;
mod flow;
mod merge;
mod slowest;
mod table;
mod unit;

pub use aligner::{Aligner, Settings};
pub use counts::{Counts, Delay, HopCounts};
pub use merge::Merge;
pub use slowest::Slowest;
pub use unit::{Fate, Passage};

/// Maximum hops of a path.
pub const MAX_HOPS: usize = 8;

/// What a record's tag identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One packet, which is never cut or joined on the path.
    Whole,
    /// Bytes of a stream. The tag's low half is the number of the first byte. Its high half is an epoch (TCP's own timestamp) that
    /// distinguishes a retransmission. Segments may be cut and joined on the path, because bytes are matched.
    Range,
}

/// One packet seen at one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Time, on the clock common to all hops.
    pub time_ns: u64,
    /// Its flow and direction; the same at every hop.
    pub flow: u64,
    /// Distinguishes it from the other packets of its flow.
    pub tag: u64,
    /// Bytes of payload.
    pub length: u32,
    /// Place on the path, from 0.
    pub hop: u8,
    /// What the tag identifies.
    pub kind: Kind,
}

/// Receives results of an [`Aligner`]. Hops are places on the path. A delay or an event "at hop k" happened between hop k-1 and k.
pub trait Sink {
    /// A packet was seen at `hop` again.
    fn duplicate(&mut self, hop: usize);
    /// A packet arrived at `hop` after one of its flow that it preceded at the previous hop.
    fn reordered(&mut self, hop: usize);
    /// A packet is finished: no more records of it are expected.
    fn finished(&mut self, passage: &Passage);
}

impl<A: Sink, B: Sink> Sink for (A, B) {
    fn duplicate(&mut self, hop: usize) {
        self.0.duplicate(hop);
        self.1.duplicate(hop);
    }

    fn reordered(&mut self, hop: usize) {
        self.0.reordered(hop);
        self.1.reordered(hop);
    }

    fn finished(&mut self, passage: &Passage) {
        self.0.finished(passage);
        self.1.finished(passage);
    }
}

/// Spreads the bits of a key (the finaliser of `MurmurHash3`, by Austin Appleby).
fn mixed(key: u64) -> u64 {
    let key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}
