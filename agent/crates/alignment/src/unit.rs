//! A packet on its way, in one line of cache, and what is told of it at the end.

use crate::{Kind, MAX_HOPS};

/// A packet on its way: the times it was seen, as offsets from the first.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Unit {
    pub(crate) tag: u64,
    pub(crate) first_ns: u64,
    /// Where it was seen lies in `seen`; the others' offsets mean nothing.
    offsets: [u32; MAX_HOPS],
    pub(crate) flow: u32,
    pub(crate) length: u32,
    pub(crate) epoch: u32,
    /// One bit a hop.
    pub(crate) seen: u8,
    /// Hops where some of its bytes were seen, but not all.
    pub(crate) partly: u8,
    pub(crate) kind: Kind,
    /// Another of its flow was on its way that looks the same: which of them came where, nobody can tell.
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

    /// Whether it began after tracing was closed: known, so that its later sightings are not taken for another packet's, but not
    /// told.
    pub(crate) fn is_late(&self, closed_ns: Option<u64>) -> bool {
        closed_ns.is_some_and(|closed_ns| self.first_ns >= closed_ns)
    }

    /// Notes an arrival. Times may come slightly out of order; the offsets then move.
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

/// Offsets end at 4.29 s; no horizon is that long.
fn clamped(offset_ns: u64) -> u32 {
    u32::try_from(offset_ns).unwrap_or(u32::MAX)
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was seen at the first hop and at the last.
    Delivered,
    /// It was last seen one hop before `hop`, which other packets of its flow have reached.
    Lost {
        /// The first hop it did not reach.
        hop: usize,
    },
    /// It was last seen one hop before `hop`, which no packet of its flow has ever reached: another way, or everything lost.
    Astray {
        /// The first hop it did not reach.
        hop: usize,
    },
    /// Its flow goes over the first hop, but this packet was first seen at `hop`: later than the horizon, doubled later than
    /// the horizon, or not recorded at the hops before.
    Stray {
        /// Where it was first seen.
        hop: usize,
    },
    /// Of a flow that never was at the first hop: traffic of others.
    Other,
    /// Tracing ended, or was cut short, while it was on its way.
    Unfinished,
}

/// Everything known of a packet at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Its flow.
    pub flow: u64,
    /// Its tag; of a range, the number of its first byte, unwrapped.
    pub tag: u64,
    /// Bytes of payload.
    pub length: u32,
    /// What the tag names.
    pub kind: Kind,
    /// How many hops the path has.
    pub hops: usize,
    /// When it was seen at each hop; a range is there when all its bytes are.
    pub times: [Option<u64>; MAX_HOPS],
    /// What became of it.
    pub fate: Fate,
    /// Another that looks the same was on its way with it, so that times and fate may be the other's.
    pub alike: bool,
}

impl Passage {
    /// From the hop before to `hop`, if it was seen at both and is no other's; negative if the clocks are not as good as thought.
    #[must_use]
    pub fn delay(&self, hop: usize) -> Option<i64> {
        self.between(hop.checked_sub(1)?, hop)
    }

    /// From the first hop to the last, likewise.
    #[must_use]
    pub fn total(&self) -> Option<i64> {
        self.between(0, self.hops - 1)
    }

    fn between(&self, from: usize, to: usize) -> Option<i64> {
        let (from_ns, to_ns) = (self.times[from].filter(|_| !self.alike)?, self.times[to]?);
        i64::try_from(i128::from(to_ns) - i128::from(from_ns)).ok()
    }
}
