#![forbid(unsafe_code)]
//! Aligns what the hops of a path saw: which record here and which there were the same packet, how long it took from hop to
//! hop, and what was lost, duplicated or reordered on the way (VITS, section 4.5). Pure and streaming: records go in by time,
//! finished packets come out, and memory is bounded by a horizon. Deliberately not here: where records come from, and clocks
//! other than the one the caller has already brought them to.
//!
//! [`Merge`] puts records of several sources in order, [`Aligner`] matches them and pushes what it finds into a [`Sink`], and
//! [`Tally`] is the sink that counts.

mod aligner;
mod flow;
mod merge;
mod slowest;
mod table;
mod tally;
mod unit;

pub use aligner::{Aligner, Settings};
pub use merge::Merge;
pub use slowest::Slowest;
pub use tally::{Delay, HopTally, Tally};
pub use unit::{Fate, Passage};

/// Most hops a path can have.
pub const MAX_HOPS: usize = 8;

/// What a record's tag names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One packet, which is never cut or joined on the way.
    Whole,
    /// Bytes of a stream: the tag's low half is the number of the first, its high half an epoch (TCP's own timestamp) that tells
    /// a retransmission from the first sending. Segments may be cut and joined on the way; bytes are what is matched.
    Range,
}

/// One packet seen at one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When, on the clock all hops were brought to.
    pub time_ns: u64,
    /// Its flow and direction; the same at every hop.
    pub flow: u64,
    /// What tells it from the other packets of its flow.
    pub tag: u64,
    /// Bytes of payload.
    pub length: u32,
    /// Where on the path, from 0.
    pub hop: u8,
    /// What the tag names.
    pub kind: Kind,
}

/// Takes what an [`Aligner`] finds. Hops are places on the path; a delay or an event "at hop k" happened between hop k-1 and k.
pub trait Sink {
    /// A packet was seen at `hop` once more.
    fn duplicate(&mut self, hop: usize);
    /// A packet arrived at `hop` after one of its flow that it was ahead of one hop earlier.
    fn reordered(&mut self, hop: usize);
    /// All that will be known of a packet is known.
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
