//! A packet in transit, in one cache line, and its final report.

use crate::{Kind, MAX_HOPS};

/// A packet in transit: its times, as offsets from the first.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Unit {
    pub(crate) tag: u64,
    pub(crate) first_ns: u64,
    /// Only valid for hops in `seen`.
    offsets: [u32; MAX_HOPS],
    pub(crate) flow: u32,
    pub(crate) length: u32,
    pub(crate) epoch: u32,
    /// One bit per hop.
    pub(crate) seen: u8,
    /// Hops at which some of its bytes were seen, but not all.
    pub(crate) partly: u8,
    pub(crate) kind: Kind,
    /// An identical packet of its flow was in transit, so records cannot be attributed to one of them.
    pub(crate) alike: bool,
}

impl Unit {
    pub(crate) fn new(tag: u64, length: u32, kind: Kind, flow: u32, epoch: u32, time_ns: u64) -> Self {
        Self { tag, first_ns: time_ns, offsets: [0; MAX_HOPS], flow, length, epoch, seen: 0, partly: 0, kind, alike: false }
    }

    pub(crate) fn was_at(&self, hop: usize) -> bool {
        self.seen & (1 << hop) != 0
    }

    pub(crate) fn time_at(&self, hop: usize) -> Option<u64> {
        self.was_at(hop).then(|| self.first_ns + u64::from(self.offsets[hop]))
    }

    /// Whether it began after tracing was closed. Such a packet is tracked, so that its later records are not attributed to another, but it
    /// is not reported.
    pub(crate) fn is_late(&self, closed_ns: Option<u64>) -> bool {
        closed_ns.is_some_and(|closed_ns| self.first_ns >= closed_ns)
    }

    /// Records an arrival. Times may be slightly out of order; the offsets then shift.
    pub(crate) fn arrive(&mut self, hop: usize, time_ns: u64) {
        if time_ns < self.first_ns {
            let earlier = clamped(self.first_ns - time_ns);
            self.offsets.iter_mut().for_each(|offset| *offset = offset.saturating_add(earlier));
            self.first_ns = time_ns;
        }
        self.offsets[hop] = clamped(time_ns - self.first_ns);
        self.seen |= 1 << hop;
    }

    pub(crate) fn passage(&self, flow: u64, hops: usize, fate: Fate) -> Passage {
        let times = std::array::from_fn(|hop| self.time_at(hop));
        Passage { flow, tag: self.tag, length: self.length, kind: self.kind, hops, times, fate, alike: self.alike }
    }
}

/// Offsets are limited to 4.29 s, above any horizon.
fn clamped(offset_ns: u64) -> u32 {
    u32::try_from(offset_ns).unwrap_or(u32::MAX)
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was seen at the first hop and at the last.
    Delivered,
    /// It was last seen one hop before `hop`, which other packets of its flow have reached.
    Lost {
        /// The first hop it did not reach.
        hop: usize,
    },
    /// It was last seen one hop before `hop`, which no packet of its flow has ever reached. It took another path, or everything was lost.
    Astray {
        /// The first hop it did not reach.
        hop: usize,
    },
    /// Its flow passes the first hop, but this packet was first seen at `hop`. It arrived or was duplicated after the horizon, or was not
    /// recorded at the hops before.
    Stray {
        /// The hop at which it was first seen.
        hop: usize,
    },
    /// It belongs to a flow that was never seen at the first hop: other traffic.
    Other,
    /// Tracing ended, or was cut short, while it was in transit.
    Unfinished,
}

/// Final report of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Its flow.
    pub flow: u64,
    /// Its tag. For a range, the unwrapped number of its first byte.
    pub tag: u64,
    /// Bytes of payload.
    pub length: u32,
    /// What the tag identifies.
    pub kind: Kind,
    /// Number of hops on the path.
    pub hops: usize,
    /// Its time at each hop. A range is seen when all its bytes are.
    pub times: [Option<u64>; MAX_HOPS],
    /// What became of it.
    pub fate: Fate,
    /// An identical packet was in transit at the same time, so times and fate may be the other's.
    pub alike: bool,
}

impl Passage {
    /// Delay from the previous hop to `hop`, if it was seen at both and has no identical packet. Negative if the clocks are inexact.
    #[must_use]
    pub fn delay(&self, hop: usize) -> Option<i64> {
        self.between(hop.checked_sub(1)?, hop)
    }

    /// Delay from the first hop to the last, under the same conditions.
    #[must_use]
    pub fn total(&self) -> Option<i64> {
        self.between(0, self.hops - 1)
    }

    fn between(&self, from: usize, to: usize) -> Option<i64> {
        let (from_ns, to_ns) = (self.times[from].filter(|_| !self.alike)?, self.times[to]?);
        i64::try_from(i128::from(to_ns) - i128::from(from_ns)).ok()
    }
}
