//! State of each flow: the hops it has reached, the latest packets at each hop, and the live byte ranges of a stream.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::MAX_HOPS;

/// Flow IDs are already hashes, so their own bits suffice.
#[derive(Default)]
pub(crate) struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, &byte| sum.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = crate::mixed(value);
    }
}

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) id: u64,
    /// One bit for each hop at which any of its packets was seen.
    pub(crate) reached: u8,
    /// Of the packets that reached hop k, the latest time at hop k - 1.
    pub(crate) ahead_ns: [u64; MAX_HOPS],
    /// Number of packets in transit.
    pub(crate) live: u32,
    /// Whether the tracer stopped recording it, so that packets in transit are not seen arriving.
    pub(crate) cut: bool,
    /// Identical packets that are in transit at the same time, by tag.
    pub(crate) groups: Option<HashMap<u64, Group, BuildHasherDefault<Plain>>>,
    pub(crate) ranges: Option<Box<Ranges>>,
}

/// Packets of one tag, by slot, in ascending order. Each record concerns the ends of these queues only, however many packets there are.
#[derive(Debug, Default)]
pub(crate) struct Group {
    live: VecDeque<u64>,
    /// Those that were not seen at each hop.
    awaited: [VecDeque<u64>; MAX_HOPS],
}

impl Group {
    /// Adds a packet, later than all others, that was seen at the hops in `seen`.
    pub(crate) fn add(&mut self, slot: u64, seen: u8, hops: usize) {
        self.live.push_back(slot);
        (0..hops).filter(|hop| seen & (1 << hop) == 0).for_each(|hop| self.awaited[hop].push_back(slot));
    }

    /// The latest packet that was not seen at `hop`. It is now.
    pub(crate) fn take(&mut self, hop: usize) -> Option<u64> {
        self.awaited[hop].pop_back()
    }

    /// The latest packet that was not seen at `hop`.
    pub(crate) fn latest_awaited(&self, hop: usize) -> Option<u64> {
        self.awaited[hop].back().copied()
    }
}

impl Flow {
    /// The packets of a tag, if several are in transit.
    pub(crate) fn group(&mut self, tag: u64) -> Option<&mut Group> {
        self.groups.as_mut()?.get_mut(&tag)
    }

    /// Removes the first packet of a tag from its group. Returns the one that is the first now.
    pub(crate) fn leave_group(&mut self, tag: u64, slot: u64) -> Option<u64> {
        let group = self.group(tag)?;
        for queue in group.awaited.iter_mut().chain([&mut group.live]) {
            if queue.front() == Some(&slot) {
                queue.pop_front();
            }
        }
        let next = group.live.front().copied();
        if next.is_none() {
            self.groups.as_mut()?.remove(&tag);
        }
        next
    }
}

/// Live byte ranges of a stream, by unwrapped number of their first byte. A retransmission is kept next to the first transmission.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    latest: Option<u64>,
    longest: u64,
    live: BTreeMap<(u64, u64), u64>,
}

impl Ranges {
    /// A 32-bit sequence number as one that never wraps: the nearest to the latest.
    pub(crate) fn unwrapped(&mut self, number: u32) -> u64 {
        // Far from zero, so that numbers before the first are not negative.
        let latest = self.latest.unwrap_or((1 << 40) | u64::from(number));
        let whole = latest.wrapping_add_signed(i64::from(number.wrapping_sub(latest as u32).cast_signed()));
        self.latest = Some(latest.max(whole));
        whole
    }

    pub(crate) fn insert(&mut self, start: u64, length: u32, slot: u64) {
        self.longest = self.longest.max(u64::from(length));
        self.live.insert((start, slot), start + u64::from(length));
    }

    pub(crate) fn remove(&mut self, start: u64, slot: u64) {
        self.live.remove(&(start, slot));
    }

    /// Slots and limits of the live ranges that overlap `start..end`, in order of their first byte.
    pub(crate) fn overlapping(&self, start: u64, end: u64, into: &mut Vec<(u64, u64, u64)>) {
        into.clear();
        let first = start.saturating_sub(self.longest);
        let overlaps = self.live.range((first, 0)..(end, 0)).filter(|(_, &until)| until > start);
        into.extend(overlaps.map(|(&(from, slot), &until)| (slot, from, until)));
    }
}

/// All flows, by number.
#[derive(Debug)]
pub(crate) struct Flows {
    all: Vec<Flow>,
    by_id: HashMap<u64, u32, BuildHasherDefault<Plain>>,
    free: Vec<u32>,
    max: usize,
    last: u32,
}

impl Flows {
    pub(crate) fn new(max: usize) -> Self {
        Self { all: Vec::new(), by_id: HashMap::default(), free: Vec::new(), max: max.max(1), last: 0 }
    }

    pub(crate) fn get(&self, number: u32) -> &Flow {
        &self.all[number as usize]
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> &mut Flow {
        &mut self.all[number as usize]
    }

    pub(crate) fn each(&mut self) -> impl Iterator<Item = &mut Flow> {
        self.all.iter_mut()
    }

    /// The number of flow `id`. Consecutive records are often of one flow.
    pub(crate) fn number(&mut self, id: u64) -> u32 {
        if self.all.get(self.last as usize).is_some_and(|flow| flow.id == id) {
            return self.last;
        }
        self.last = match self.by_id.get(&id) {
            Some(&number) => number,
            None => self.add(id),
        };
        self.last
    }

    fn add(&mut self, id: u64) -> u32 {
        if self.by_id.len() >= self.max {
            self.forget_idle();
        }
        let flow = Flow { id, reached: 0, ahead_ns: [0; MAX_HOPS], live: 0, cut: false, groups: None, ranges: None };
        let number = if let Some(number) = self.free.pop() {
            self.all[number as usize] = flow;
            number
        } else {
            self.all.push(flow);
            self.all.len() as u32 - 1
        };
        self.by_id.insert(id, number);
        number
    }

    /// Makes room by forgetting flows without packets in transit. A forgotten flow that returns starts again.
    fn forget_idle(&mut self) {
        let (all, free) = (&self.all, &mut self.free);
        self.by_id.retain(|_, &mut number| {
            let stays = all[number as usize].live > 0;
            if !stays {
                free.push(number);
            }
            stays
        });
        // If every flow is busy, allow a quarter more instead of a search for each new one.
        if self.free.is_empty() {
            self.max += self.max / 4 + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_are_unwrapped_forwards_and_backwards() {
        let mut ranges = Ranges::default();
        let start = ranges.unwrapped(u32::MAX - 9);
        assert_eq!(ranges.unwrapped(5) - start, 15);
        assert_eq!(start - ranges.unwrapped(u32::MAX - 19), 10);
        assert_eq!(ranges.unwrapped(6) - start, 16);
    }

    #[test]
    fn idle_flows_make_room_and_busy_ones_stay() {
        let mut flows = Flows::new(2);
        let busy = flows.number(1);
        flows.get_mut(busy).live = 1;
        flows.number(2);
        flows.number(3);
        flows.number(4);
        assert_eq!((flows.number(1), flows.get(busy).live), (busy, 1));
        assert!(flows.all.len() <= 3, "{}", flows.all.len());
    }
}
