//! The sink that counts packets, losses and delays per hop.

use partywall_record::LatencyCounts;

use crate::unit::{Fate, Passage};
use crate::{Sink, MAX_HOPS};

/// Delays. Negative ones, caused by clock errors, are separate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// The delays that were not negative.
    pub counts: LatencyCounts,
    /// Sum of these delays.
    pub sum_ns: u64,
    /// The shortest of these delays.
    pub min_ns: Option<u64>,
    /// The longest of these delays.
    pub max_ns: Option<u64>,
    /// Number of negative delays.
    pub negative: u64,
    /// The most negative delay, as a positive number.
    pub negative_max_ns: u64,
}

impl Delay {
    fn record(&mut self, delay_ns: i64) {
        let Ok(delay_ns) = u64::try_from(delay_ns) else {
            self.negative += 1;
            self.negative_max_ns = self.negative_max_ns.max(delay_ns.unsigned_abs());
            return;
        };
        self.counts.record(delay_ns);
        self.sum_ns += delay_ns;
        self.min_ns = Some(self.min_ns.map_or(delay_ns, |min_ns| min_ns.min(delay_ns)));
        self.max_ns = Some(self.max_ns.map_or(delay_ns, |max_ns| max_ns.max(delay_ns)));
    }
}

/// Events between the previous hop and this one; for the first hop, at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HopCounts {
    /// Packets of the path's flows seen here, each counted once.
    pub packets: u64,
    /// Their bytes of payload.
    pub bytes: u64,
    /// Packets seen at the previous hop, but neither here nor later.
    pub lost: u64,
    /// Lost packets of flows that never reached this hop: they took another path, or everything was lost.
    pub astray: u64,
    /// Packets seen here again.
    pub duplicates: u64,
    /// Packets overtaken between the previous hop and this one.
    pub reordered: u64,
    /// Packets not seen here, but later on the path.
    pub skipped: u64,
    /// Packets first seen here although their flow passes the first hop.
    pub stray: u64,
    /// Delay from the previous hop to this one.
    pub delay: Delay,
}

/// Counts the results of an aligner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By hop on the path.
    pub hops: [HopCounts; MAX_HOPS],
    /// Delay from the first hop to the last.
    pub total: Delay,
    /// Packets seen at the first hop and at the last.
    pub delivered: u64,
    /// Packets in transit at the end, or cut off when fewer flows were sampled.
    pub unfinished: u64,
    /// Packets of flows that were never seen at the first hop.
    pub other: u64,
    /// Packets identical to others of their flow in transit: counted, but in no delay.
    pub alike: u64,
}

impl Sink for Counts {
    fn duplicate(&mut self, hop: usize) {
        self.hops[hop].duplicates += 1;
    }

    fn reordered(&mut self, hop: usize) {
        self.hops[hop].reordered += 1;
    }

    fn finished(&mut self, passage: &Passage) {
        match passage.fate {
            Fate::Other => {
                self.other += 1;
                return;
            }
            Fate::Delivered => self.delivered += 1,
            Fate::Lost { hop } => self.hops[hop].lost += 1,
            Fate::Astray { hop } => self.hops[hop].astray += 1,
            Fate::Stray { hop } => self.hops[hop].stray += 1,
            Fate::Unfinished => self.unfinished += 1,
        }
        self.hop_by_hop(passage);
        self.alike += u64::from(passage.alike);
        if let Some(total_ns) = passage.total() {
            self.total.record(total_ns);
        }
    }
}

impl Counts {
    fn hop_by_hop(&mut self, passage: &Passage) {
        let last = (0..passage.hops).rev().find(|&hop| passage.times[hop].is_some()).unwrap_or(0);
        for (hop, counts) in self.hops.iter_mut().enumerate().take(passage.hops) {
            if passage.times[hop].is_some() {
                counts.packets += 1;
                counts.bytes += u64::from(passage.length);
            } else if hop < last && passage.times[0].is_some() {
                counts.skipped += 1;
            }
            if let Some(delay_ns) = passage.delay(hop) {
                counts.delay.record(delay_ns);
            }
        }
    }
}
