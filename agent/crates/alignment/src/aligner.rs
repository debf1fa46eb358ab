//! Matches records of packets.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use crate::flow::{Flows, Group};
use crate::table::Table;
use crate::unit::{Fate, Unit};
use crate::{mixed, Kind, Seen, Sink, MAX_HOPS};

/// Maximum ranges in transit that overlap a new one. In honest streams only retransmissions overlap.
const OVERLAPS_MOST: usize = 64;

/// Limits of an aligner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Hops of the path, 2 to [`MAX_HOPS`].
    pub hops: usize,
    /// Maximum wait for a packet, from its first hop on; at most 4 s.
    pub horizon_ns: u64,
    /// Maximum packets in transit. Above it, the oldest are given up early and counted.
    pub units_max: usize,
    /// Maximum remembered flows, unless more have packets in transit.
    pub flows_max: usize,
}

impl Settings {
    /// The longest horizon.
    pub const HORIZON_MAX_NS: u64 = 4_000_000_000;

    /// The defaults for a path of this many hops.
    #[must_use]
    pub fn of(hops: usize) -> Self {
        Self { hops, horizon_ns: 500_000_000, units_max: 1 << 20, flows_max: 1 << 16 }
    }
}

/// Matches records of one direction of a path. Records arrive in order of time, as from [`Merge`](crate::Merge). Slight disorder only
/// makes reordering counts less exact.
pub struct Aligner<S> {
    settings: Settings,
    sink: S,
    /// Packets in transit, in order of their first record. Slot `base` is the front.
    units: VecDeque<Unit>,
    base: u64,
    whole: Table,
    flows: Flows,
    /// Which bytes of a range were seen at a hop, until all are.
    pieces: HashMap<(u64, usize), Vec<(u64, u64)>>,
    closed_ns: Option<u64>,
    forced: u64,
    /// Buffer, reused for each record of a stream.
    overlaps: Vec<(u64, u64, u64)>,
}

impl<S: Sink> Aligner<S> {
    /// An aligner that reports to `sink`.
    ///
    /// # Panics
    /// If the settings are out of range.
    #[must_use]
    pub fn new(settings: Settings, sink: S) -> Self {
        assert!((2..=MAX_HOPS).contains(&settings.hops), "{} hops", settings.hops);
        assert!((1..=Settings::HORIZON_MAX_NS).contains(&settings.horizon_ns), "a horizon of {} ns", settings.horizon_ns);
        Self {
            settings,
            sink,
            units: VecDeque::new(),
            base: 0,
            whole: Table::new(),
            flows: Flows::new(settings.flows_max),
            pieces: HashMap::new(),
            closed_ns: None,
            forced: 0,
            overlaps: Vec::new(),
        }
    }

    /// The receiver of results.
    pub fn sink(&mut self) -> &mut S {
        &mut self.sink
    }

    /// Packets given up before the horizon because too many were in transit.
    #[must_use]
    pub fn forced(&self) -> u64 {
        self.forced
    }

    /// Number of packets in transit.
    #[must_use]
    pub fn live(&self) -> usize {
        self.units.len()
    }

    /// Processes one record.
    pub fn push(&mut self, seen: &Seen) {
        debug_assert!(usize::from(seen.hop) < self.settings.hops);
        self.advance(seen.time_ns);
        let flow = self.flows.number(seen.flow);
        if self.flows.get(flow).cut {
            return;
        }
        match seen.kind {
            Kind::Whole => self.whole(seen, flow),
            Kind::Range => self.range(seen, flow),
        }
    }

    /// Finishes packets that were first seen more than the horizon before `now_ns`.
    pub fn advance(&mut self, now_ns: u64) {
        while self.units.front().is_some_and(|unit| now_ns.saturating_sub(unit.first_ns) > self.settings.horizon_ns) {
            self.finish_first(false);
        }
    }

    /// Packets that begin at `at_ns` or later are not reported. Packets in transit may still arrive.
    pub fn close(&mut self, at_ns: u64) {
        self.closed_ns = Some(at_ns);
    }

    /// From now on, the tracer only records flows for which `stays` is true. Packets of other flows in transit count neither as delivered
    /// nor as lost.
    pub fn cut(&mut self, stays: impl Fn(u64) -> bool) {
        self.flows.each().filter(|flow| !stays(flow.id)).for_each(|flow| flow.cut = true);
    }

    /// Finishes all packets. Those within the horizon are unfinished.
    pub fn finish(&mut self) {
        while !self.units.is_empty() {
            self.finish_first(true);
        }
    }

    fn unit(&mut self, slot: u64) -> &mut Unit {
        &mut self.units[(slot - self.base) as usize]
    }

    /// Of several identical packets, the latest that was not seen here is used. So a lost packet is not matched with later ones
    /// indefinitely.
    fn whole(&mut self, seen: &Seen, flow: u32) {
        let hash = whole_hash(seen.flow, seen.tag);
        let (units, base, hop, last) = (&self.units, self.base, usize::from(seen.hop), self.settings.hops - 1);
        let is_it = |slot: u64| (units[(slot - base) as usize].tag, units[(slot - base) as usize].flow) == (seen.tag, flow);
        let Some(first) = self.whole.find(hash, base, is_it) else {
            let slot = self.begin(seen, flow, seen.tag, 0);
            self.whole.insert(hash, slot);
            return;
        };
        let unit = *self.unit(first);
        let (awaited, on_its_way) = match self.flows.get_mut(flow).group(seen.tag) {
            Some(group) => (group.take(hop), group.latest_awaited(last)),
            None => ((!unit.was_at(hop)).then_some(first), (!unit.was_at(last)).then_some(first)),
        };
        if let Some(slot) = awaited {
            self.arrive(slot, hop, seen.time_ns);
        } else if hop > 0 && !unit.is_late(self.closed_ns) {
            self.sink.duplicate(hop);
        } else {
            self.begin_again(seen, flow, first);
            if let Some(other) = on_its_way.filter(|_| hop == 0) {
                self.look_alike(self.base + self.units.len() as u64 - 1, other);
            }
        }
    }

    /// Adds a packet with the same tag as others in transit, of which `first` is the first: perhaps the sender repeated it.
    fn begin_again(&mut self, seen: &Seen, flow: u32, first: u64) {
        let (hops, hop) = (self.settings.hops, usize::from(seen.hop));
        let slot = self.begin(seen, flow, seen.tag, 0);
        let before = (first >= self.base).then(|| self.unit(first).seen);
        match (self.flows.get_mut(flow).group(seen.tag), before) {
            (Some(group), _) => group.add(slot, 1 << hop, hops),
            (None, Some(before)) => {
                let mut group = Group::default();
                group.add(first, before, hops);
                group.add(slot, 1 << hop, hops);
                self.flows.get_mut(flow).groups.get_or_insert_default().insert(seen.tag, group);
            }
            // The first was given up to make room.
            (None, None) => self.whole.insert(whole_hash(seen.flow, seen.tag), slot),
        }
    }

    /// Marks two packets that are indistinguishable from here on. One may have been finished meanwhile.
    fn look_alike(&mut self, slot: u64, other: u64) {
        for slot in [slot, other] {
            if slot >= self.base {
                self.unit(slot).alike = true;
            }
        }
    }

    fn range(&mut self, seen: &Seen, flow: u32) {
        let hop = usize::from(seen.hop);
        let epoch = (seen.tag >> 32) as u32;
        let mut overlaps = std::mem::take(&mut self.overlaps);
        let ranges = self.flows.get_mut(flow).ranges.get_or_insert_default();
        let start = ranges.unwrapped(seen.tag as u32);
        let end = start + u64::from(seen.length);
        ranges.overlapping(start, end, &mut overlaps);
        if hop == 0 && overlaps.len() > OVERLAPS_MOST {
            self.forget_oldest(flow, &mut overlaps);
        }
        overlaps.retain(|&(slot, ..)| self.units[(slot - self.base) as usize].epoch == epoch);
        // At the first hop all packets are new, except those that clock errors placed at a later hop before.
        let mut on_their_way = Vec::new();
        if hop == 0 {
            let last = self.settings.hops - 1;
            let unit = |slot: u64| &self.units[(slot - self.base) as usize];
            on_their_way.extend(overlaps.iter().map(|&(slot, ..)| slot).filter(|&slot| unit(slot).was_at(0) && !unit(slot).was_at(last)));
            overlaps.retain(|&(slot, from, until)| (from, until) == (start, end) && !self.units[(slot - self.base) as usize].was_at(0));
        }
        if overlaps.is_empty() {
            let slot = self.begin_range(seen, flow, start, epoch);
            for other in on_their_way {
                self.look_alike(slot, other);
            }
        } else {
            self.cover(&mut overlaps, hop, start, end, seen.time_ns);
        }
        self.overlaps = overlaps;
    }

    /// Bounds the work for a sender that sends the same bytes again and again. The oldest range is given up if it is still in transit.
    fn forget_oldest(&mut self, flow: u32, overlaps: &mut Vec<(u64, u64, u64)>) {
        let Some(&(slot, from, _)) = overlaps.iter().min() else { return };
        let last = self.settings.hops - 1;
        self.forced += u64::from(!self.unit(slot).was_at(last));
        if let Some(ranges) = &mut self.flows.get_mut(flow).ranges {
            ranges.remove(from, slot);
        }
        overlaps.retain(|&(each, ..)| each != slot);
    }

    fn begin_range(&mut self, seen: &Seen, flow: u32, start: u64, epoch: u32) -> u64 {
        let slot = self.begin(seen, flow, start, epoch);
        if let Some(ranges) = &mut self.flows.get_mut(flow).ranges {
            ranges.insert(start, seen.length, slot);
        }
        slot
    }

    /// Records bytes `start..end` at `hop` for the ranges that contain them. Each byte counts for one range. If bytes were repeated within
    /// an epoch, they count for the range that lies wholly within the arrived bytes, otherwise for the latest range that awaits them.
    fn cover(&mut self, overlaps: &mut Vec<(u64, u64, u64)>, hop: usize, start: u64, end: u64, time_ns: u64) {
        let (units, base) = (&self.units, self.base);
        let is_known = overlaps.iter().any(|&(slot, ..)| !units[(slot - base) as usize].is_late(self.closed_ns));
        overlaps.retain(|&(slot, ..)| !units[(slot - base) as usize].was_at(hop));
        if overlaps.is_empty() {
            if is_known {
                self.sink.duplicate(hop);
            }
            return;
        }
        // Nearly always it is one range, complete as it was sent.
        if let [(slot, from, until)] = overlaps[..] {
            if (from, until) == (start, end) && self.unit(slot).partly & (1 << hop) == 0 {
                return self.arrive(slot, hop, time_ns);
            }
        }
        overlaps.sort_by_key(|&(slot, from, until)| (from < start || until > end, Reverse(slot)));
        let mut left = vec![(start, end)];
        let mut arrived = Vec::new();
        for &mut (slot, from, until) in overlaps {
            for piece in taken(&mut left, from, until) {
                if self.complete(slot, hop, (from, until), piece) {
                    arrived.push((from, slot));
                }
            }
        }
        // They arrived at the same time, so none overtook another.
        arrived.sort_unstable();
        for (_, slot) in arrived {
            self.arrive(slot, hop, time_ns);
        }
    }

    /// Adds a piece of a range at a hop. Returns whether the range is now complete.
    fn complete(&mut self, slot: u64, hop: usize, whole: (u64, u64), piece: (u64, u64)) -> bool {
        let partly = self.unit(slot).partly & (1 << hop) != 0;
        if piece == whole && !partly {
            return true;
        }
        let pieces = self.pieces.entry((slot, hop)).or_default();
        join(pieces, piece);
        let complete = pieces[..] == [whole];
        if complete {
            self.pieces.remove(&(slot, hop));
            self.unit(slot).partly &= !(1 << hop);
        } else {
            self.unit(slot).partly |= 1 << hop;
        }
        complete
    }

    /// Adds a new packet.
    fn begin(&mut self, seen: &Seen, flow: u32, tag: u64, epoch: u32) -> u64 {
        if self.units.len() >= self.settings.units_max {
            self.forced += 1;
            self.finish_first(false);
        }
        let slot = self.base + self.units.len() as u64;
        self.units.push_back(Unit::new(tag, seen.length, seen.kind, flow, epoch, seen.time_ns));
        self.flows.get_mut(flow).live += 1;
        self.arrive(slot, usize::from(seen.hop), seen.time_ns);
        slot
    }

    fn arrive(&mut self, slot: u64, hop: usize, time_ns: u64) {
        let closed_ns = self.closed_ns;
        let unit = self.unit(slot);
        unit.arrive(hop, time_ns);
        // For a packet with an identical one, it is unknown which packets it overtook.
        let (number, late, alike) = (unit.flow, unit.is_late(closed_ns), unit.alike);
        let before_ns = hop.checked_sub(1).and_then(|before| unit.time_at(before));
        let flow = self.flows.get_mut(number);
        flow.reached |= 1 << hop;
        if let Some(before_ns) = before_ns.filter(|_| !alike) {
            if before_ns < flow.ahead_ns[hop] && !late {
                self.sink.reordered(hop);
            }
            flow.ahead_ns[hop] = flow.ahead_ns[hop].max(before_ns);
        }
    }

    fn finish_first(&mut self, ending: bool) {
        let Some(unit) = self.units.pop_front() else { return };
        let slot = self.base;
        self.base += 1;
        let fate = self.fate(&unit, ending);
        let flow = self.flows.get_mut(unit.flow);
        flow.live -= 1;
        match unit.kind {
            Kind::Whole => {
                let hash = whole_hash(flow.id, unit.tag);
                match flow.leave_group(unit.tag, slot) {
                    Some(next) => self.whole.replace(hash, slot, next),
                    None => self.whole.remove(hash, slot),
                }
            }
            Kind::Range => {
                if let Some(ranges) = &mut flow.ranges {
                    ranges.remove(unit.tag, slot);
                }
            }
        }
        let id = flow.id;
        (0..self.settings.hops).filter(|hop| unit.partly & (1 << hop) != 0).for_each(|hop| {
            self.pieces.remove(&(slot, hop));
        });
        if !unit.is_late(self.closed_ns) {
            self.sink.finished(&unit.passage(id, self.settings.hops, fate));
        }
    }

    fn fate(&self, unit: &Unit, ending: bool) -> Fate {
        let flow = self.flows.get(unit.flow);
        let hop = (u8::BITS - unit.seen.leading_zeros()) as usize;
        let arrived = hop == self.settings.hops;
        if flow.reached & 1 == 0 {
            Fate::Other
        } else if !unit.was_at(0) {
            Fate::Stray { hop: unit.seen.trailing_zeros() as usize }
        } else if arrived {
            Fate::Delivered
        } else if ending || flow.cut {
            Fate::Unfinished
        } else if flow.reached >> hop == 0 {
            Fate::Astray { hop }
        } else {
            Fate::Lost { hop }
        }
    }
}

fn whole_hash(flow: u64, tag: u64) -> u64 {
    mixed(flow ^ tag.rotate_left(32))
}

/// Adds `piece` to a sorted list of pieces that do not touch or overlap.
fn join(pieces: &mut Vec<(u64, u64)>, piece: (u64, u64)) {
    let first = pieces.partition_point(|other| other.1 < piece.0);
    let last = pieces.partition_point(|other| other.0 <= piece.1);
    let joined = pieces[first..last].iter().fold(piece, |sum, other| (sum.0.min(other.0), sum.1.max(other.1)));
    pieces.splice(first..last, [joined]);
}

/// Removes the parts within `from..until` from the remaining pieces, and returns them.
fn taken(left: &mut Vec<(u64, u64)>, from: u64, until: u64) -> Vec<(u64, u64)> {
    let (mut within, mut rest) = (Vec::new(), Vec::new());
    for &(start, end) in left.iter() {
        let (low, high) = (start.max(from), end.min(until));
        if low >= high {
            rest.push((start, end));
            continue;
        }
        within.push((low, high));
        rest.extend([(start, low), (high, end)].into_iter().filter(|(start, end)| start < end));
    }
    *left = rest;
    within
}
