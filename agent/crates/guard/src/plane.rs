//! The data plane's maps, as memory: rates and rules written, counters read, no system call in between. The layout is that
//! of `agent/bpf/guard.bpf.c`.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use aya::maps::{Map, MapData};
use aya::programs::{ProgramFd, SchedClassifier};
use aya::{Ebpf, EbpfLoader};
use partywall_clock::Nanos;
use partywall_sys::shared::Shared;
use partywall_wire::GuardRule;
use serde::{Deserialize, Serialize};

use crate::error::GuardError;

/// Of bytes, and of packets.
const BUCKETS: usize = 2;
/// A bucket is moved while packets move it; so often is tried.
const TRIES: usize = 16;

// Where the words of a leaf lie in the program's structs; a test compares them with the program.
/// Of `struct limits`: what is granted, what is fallen back to, rules, and the table of fragments.
const GRANTED: usize = 0;
const FALLBACK: usize = 6;
const RULES: usize = 12;
const RULES_MAX: usize = 6;
const FRAGMENTS: usize = 18;
const LIMITS_WORDS: usize = 19;

/// Of `struct rates`, in what is granted and in what is fallen back to. Of each bucket, bytes first, the cost and the tolerance.
const COST: usize = 0;
const TOLERANCE: usize = 2;
const HOLD_TCP: usize = 4;
#[cfg(test)]
const RATES_WORDS: usize = 6;

/// Of `struct state`. Of each bucket, bytes first, when it is due.
const DUE: usize = 0;
const TCP_BYTES: usize = 2;
const OTHER_BYTES: usize = 3;
const PASSED_PACKETS: usize = 4;
const DROPPED_BYTES: usize = 5;
const DROPPED_PACKETS: usize = 6;
const MARKED_PACKETS: usize = 7;
const DEPARTURE: usize = 8;
const STATE_WORDS: usize = 9;

/// Of `struct control`.
const HEARTBEAT: usize = 0;
const STALE_AFTER: usize = 1;
const DEPARTURES: usize = 2;
const CONTROL_WORDS: usize = 3;

/// Places, of four first fragments each, in the table of a vif; fewer if many vifs have one.
const PLACES: std::ops::RangeInclusive<usize> = 16..=256;
/// In all tables together, as far as those are not shorter than the least.
const PLACES_IN_ALL: usize = 1 << 18;

const TIME_SHIFT: u32 = 6;
const COST_SHIFT: u32 = 20;
const PACKET_SHIFT: u32 = 8;
const UNITS_PER_SECOND: u64 = 1_000_000_000 << TIME_SHIFT;

/// What a leaf may pass. No packets/s: they are not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Bit/s.
    pub bps: u64,
    /// Packets/s.
    pub pps: Option<u64>,
    /// What may pass at once, as time at this rate of bits.
    pub burst_ns: Nanos,
    /// The same of packets.
    pub packet_burst_ns: Nanos,
}

impl Grant {
    /// Costs are rounded up, so that what passes is never more than granted.
    fn words(self) -> [u64; 4] {
        let tolerance = |burst_ns: Nanos| burst_ns << TIME_SHIFT;
        [
            cost(self.bps, 8, COST_SHIFT),
            self.pps.map_or(0, |pps| cost(pps, 1, PACKET_SHIFT)),
            tolerance(self.burst_ns),
            tolerance(self.packet_burst_ns),
        ]
    }
}

/// When a bucket that is `due` will have earned at cost `new` what it owes from `now` on at cost `old`; as it is where it owes nothing, or was
/// or will be unlimited.
fn owed_anew(due: u64, now: u64, old: u64, new: u64) -> u64 {
    match due.checked_sub(now) {
        Some(ahead) if old != 0 && new != 0 && old != new => {
            now + u64::try_from(u128::from(ahead) * u128::from(new) / u128::from(old)).unwrap_or(u64::MAX / 2).min(u64::MAX / 2 - now)
        }
        _ => due,
    }
}

/// Time that one of what `rate` counts takes, `times` over; 0, which means unlimited, never comes of a rate.
fn cost(rate: u64, times: u64, shift: u32) -> u64 {
    let exact = ((UNITS_PER_SECOND * times) << shift).div_ceil(rate.max(1));
    // The program's arithmetic is exact up to this.
    exact.clamp(1, 1 << 47)
}

/// What a leaf may pass, as another process reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    pub bps: u64,
    pub pps: Option<u64>,
}

/// How far packets may run ahead of their rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Those of TCP, which watches how much of it waits.
    pub tcp_ns: Nanos,
    /// All others: their sender is stopped by what waits only if nothing else empties the queue.
    pub others_ns: Nanos,
}

impl Hold {
    fn words(self) -> [u64; 2] {
        [self.tcp_ns << TIME_SHIFT, self.others_ns << TIME_SHIFT]
    }
}

/// By what another process finds the memory of a plane whose own is gone: the kernel's numbers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Handle {
    programs: [u32; 2],
    limits: u32,
    control: u32,
    words: usize,
}

impl Handle {
    pub fn open(self) -> Result<Memory, GuardError> {
        let shared = |id: u32, words: usize| {
            let map = MapData::from_id(id).map_err(GuardError::new)?;
            Shared::new(map.fd().as_fd(), words).map_err(GuardError::kernel("the memory of a guard"))
        };
        Ok(Memory { limits: shared(self.limits, self.words)?, control: shared(self.control, CONTROL_WORDS)? })
    }

    /// Whether any hook holds the program still.
    pub fn is_hooked(self) -> bool {
        aya::programs::loaded_programs().flatten().any(|program| self.programs.contains(&program.id()))
    }

    pub fn program(self, link_header: bool) -> u32 {
        self.programs[usize::from(!link_header)]
    }
}

/// The memory of a plane, of another process's than the one that loaded it.
pub(crate) struct Memory {
    limits: Shared,
    control: Shared,
}

impl Memory {
    /// Whether the program falls back by now.
    pub fn is_stale(&self, now: Nanos) -> bool {
        let (beat, after) = (self.control.read(HEARTBEAT), self.control.read(STALE_AFTER));
        after != 0 && now > beat + after
    }

    /// What a leaf is granted, or falls back to.
    pub fn rates(&self, leaf: usize, fallen_back: bool) -> Rates {
        let at = limits_word(leaf, if fallen_back { FALLBACK } else { GRANTED } + COST);
        let rate = |cost: u64, times: u64, shift: u32| ((UNITS_PER_SECOND * times) << shift).checked_div(cost);
        Rates { bps: rate(self.limits.read(at), 8, COST_SHIFT).unwrap_or(u64::MAX), pps: rate(self.limits.read(at + 1), 1, PACKET_SHIFT) }
    }

    /// As [`Plane::hold`].
    pub fn hold(&self, leaf: usize, hold: Hold) {
        write_hold(&self.limits, leaf, hold, hold);
    }
}

/// What passed and what did not, since the plane was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that passed.
    pub passed_bytes: u64,
    /// Packets that passed.
    pub passed_packets: u64,
    /// Bytes dropped.
    pub dropped_bytes: u64,
    /// Packets dropped.
    pub dropped_packets: u64,
    /// Bytes of TCP that passed.
    pub tcp_bytes: u64,
    /// Packets marked rather than dropped.
    pub marked_packets: u64,
}

/// The loaded program and its memory. Leaf 0 is number 1: a hook without a number must not meet anybody's rates.
pub struct Plane {
    /// For interfaces with an Ethernet header, and for those without.
    programs: [ProgramFd; 2],
    limits: Shared,
    state: Shared,
    control: Shared,
    handle: Handle,
    /// Tables of first fragments: the places in each, how many there are, and how many vifs have one.
    places: usize,
    tables: usize,
    given: AtomicUsize,
    // Keeps the maps' descriptors; hooks keep program and maps in the kernel.
    _loaded: Ebpf,
}

impl Plane {
    /// Loads the program with room for `leaves` leaves, and for the fragments of `tables` vifs with rules; each leaf begins
    /// without credit, so that a restart is no second burst.
    ///
    /// # Errors
    /// No eBPF in this build, or the kernel refuses.
    pub fn load(leaves: usize, tables: usize) -> Result<Self, GuardError> {
        let object = partywall_bpf::object("guard").map_err(GuardError::lacking)?;
        let room = u32::try_from(leaves + 1).map_err(GuardError::new)?;
        let places = (PLACES_IN_ALL / tables.max(1)).clamp(*PLACES.start(), *PLACES.end());
        let mut loaded = EbpfLoader::new()
            .map_max_entries("guard_limits", room)
            .map_max_entries("guard_state", room)
            .map_max_entries("guard_fragments", (places * tables).max(1) as u32)
            .load(object)
            .map_err(|error| GuardError::lacking(format_args!("loading the eBPF program: {}; a guard needs root", chain(&error))))?;
        let refused = |error| GuardError::lacking(format_args!("the eBPF program: {}", chain(&error)));
        let (framed, bare) = (load(&mut loaded, "guard").map_err(refused)?, load(&mut loaded, "guard_bare").map_err(refused)?);
        let handle = Handle {
            programs: [framed.1, bare.1],
            limits: number_of(&loaded, "guard_limits")?,
            control: number_of(&loaded, "guard_control")?,
            words: words_of(leaves),
        };
        let plane = Self {
            handle,
            programs: [framed.0, bare.0],
            limits: memory(&loaded, "guard_limits", words_of(leaves))?,
            state: memory(&loaded, "guard_state", (leaves + 1) * STATE_WORDS)?,
            control: memory(&loaded, "guard_control", CONTROL_WORDS)?,
            places,
            tables,
            given: AtomicUsize::new(0),
            _loaded: loaded,
        };
        (0..leaves).for_each(|leaf| plane.empty(leaf));
        Ok(plane)
    }

    /// What to hook to an interface, by whether its packets begin with a link header.
    #[must_use]
    pub fn program(&self, link_header: bool) -> BorrowedFd<'_> {
        self.programs[usize::from(!link_header)].as_fd()
    }

    /// By what another process finds it.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Both buckets of a leaf hold nothing now.
    fn empty(&self, leaf: usize) {
        let now = partywall_clock::system() << TIME_SHIFT;
        (0..BUCKETS).for_each(|bucket| self.state.release(state_word(leaf, DUE + bucket), now));
    }

    /// Grants a leaf its rates, from the next packet on. What it owes is bytes and packets, and a bucket holds the time that they
    /// take: at the new rate they take another, or who sent a large packet at next to nothing would be shut out for minutes,
    /// whatever he is granted then.
    ///
    /// Of each bucket a burst is never longer than what belongs to the rate: that of a low rate may be long.
    pub fn grant(&self, leaf: usize, now: Nanos, grant: Grant) {
        let words = grant.words();
        for bucket in 0..BUCKETS {
            let (cost, tolerance) = (COST + bucket, TOLERANCE + bucket);
            let old = self.limits.read(limits_word(leaf, GRANTED + cost));
            let put = |word: usize| self.write(leaf, word, &words[word..=word]);
            if words[cost] < old {
                put(tolerance);
                put(cost);
            } else {
                put(cost);
                put(tolerance);
            }
            self.owe(leaf, bucket, now, (old, words[cost]));
        }
    }

    /// Makes what a bucket runs ahead of the clock what the same bytes take at another cost. What a queue holds stays time. One
    /// with a rate lets a burst pass when that is changed, and is settled by what is found in it ([`Plane::settle`]); in one with
    /// departure times these are given, and what comes later must not leave before.
    fn owe(&self, leaf: usize, bucket: usize, now: Nanos, (old, new): (u64, u64)) {
        let now = now << TIME_SHIFT;
        let ahead = |word: usize| self.limits.read(limits_word(leaf, GRANTED + HOLD_TCP + word));
        let (due, held) = (state_word(leaf, DUE + bucket), ahead(0).max(ahead(1)));
        let from = if self.departures() { self.state.read(state_word(leaf, DEPARTURE)).max(now) } else { now };
        let stays = if self.departures() { from } else { now + 2 * held };
        self.state.update(due, TRIES, |seen| {
            let moved = owed_anew(seen, from, old, new);
            (seen > stays && moved != seen).then_some(moved)
        });
    }

    /// Fills a leaf's buckets up to the bursts of `grant`; one that ran ahead of the clock, for a queue holds what waits, stays as
    /// it is.
    pub fn fill(&self, leaf: usize, now: Nanos, grant: Grant) {
        for (bucket, burst_ns) in [grant.burst_ns, grant.packet_burst_ns].into_iter().enumerate() {
            let (empty, full) = (now << TIME_SHIFT, now.saturating_sub(burst_ns) << TIME_SHIFT);
            let filled = |found: u64| (found > full && found <= empty).then_some(full);
            self.state.update(state_word(leaf, DUE + bucket), TRIES, filled);
        }
    }

    /// What a leaf falls back to when nobody grants any more.
    pub fn fall_back_to(&self, leaf: usize, grant: Grant) {
        self.write(leaf, FALLBACK, &grant.words());
    }

    /// Lets packets run ahead of their rate by so much, because a queue behind the hook holds them back: of what is granted, and
    /// of what the leaf falls back to.
    pub fn hold(&self, leaf: usize, granted: Hold, fallback: Hold) {
        write_hold(&self.limits, leaf, granted, fallback);
    }

    /// When what a leaf let through so far would have left at exactly its rates, of bytes and of packets: before now by the
    /// burst of `grant` at the most.
    #[must_use]
    pub fn due(&self, leaf: usize, now: Nanos, grant: Grant) -> [Nanos; 2] {
        let at = |bucket, burst_ns| {
            let due = self.state.read(state_word(leaf, DUE + bucket)) >> TIME_SHIFT;
            due.max(now.saturating_sub(burst_ns))
        };
        [at(0, grant.burst_ns), at(1, grant.packet_burst_ns)]
    }

    /// Brings the hook's account of what waits to what was found waiting; returns by how much it was moved, in ns. A queue with a
    /// rate lets a burst pass whenever that is changed, so that the account would run ahead and packets be dropped though there
    /// is room; and it is a trifle slower than the hook, so that in the long run more would wait than may. Only of bytes: these
    /// the queue limits itself. One with departure times is as the account has it.
    #[must_use]
    pub fn settle(&self, leaf: usize, now: Nanos, wait_ns: Nanos, hold_ns: Nanos) -> i64 {
        let (found, slack) = ((now + wait_ns) << TIME_SHIFT, (hold_ns / 4) << TIME_SHIFT);
        let settled = |account: u64| {
            let behind = wait_ns > hold_ns / 4 && account + slack < found;
            (account > found + slack || behind).then_some(found)
        };
        let moved = self.state.update(state_word(leaf, DUE), TRIES, settled);
        moved.map_or(0, |(account, found)| (found.cast_signed() - account.cast_signed()) >> TIME_SHIFT)
    }

    /// Says, once, which leaf a packet of hook `leaf` belongs to.
    ///
    /// # Errors
    /// More rules than there is room for, or more hooks with rules than tables.
    pub fn rules(&self, leaf: usize, rules: &[GuardRule]) -> Result<(), GuardError> {
        if rules.len() > RULES_MAX {
            let why = format_args!("{} rules for flow classes; one vif can have {RULES_MAX}", rules.len());
            return Err(GuardError::usage(why));
        }
        let words: Vec<u64> = rules.iter().map(word).collect();
        self.write(leaf, RULES, &words);
        if !rules.is_empty() {
            self.write(leaf, FRAGMENTS, &[self.table()?]);
        }
        Ok(())
    }

    /// The next table that no vif has.
    fn table(&self) -> Result<u64, GuardError> {
        let given = self.given.fetch_add(1, Ordering::Relaxed);
        if given >= self.tables {
            return Err(GuardError::usage(format_args!("rules at more than {} hooks", self.tables)));
        }
        Ok((self.places as u64) << 32 | (given * self.places) as u64)
    }

    /// Tells the program that somebody still grants.
    pub fn beat(&self, now: Nanos) {
        self.control.release(HEARTBEAT, now);
    }

    /// After how long without a beat the program falls back; 0 is never.
    pub fn stale_after(&self, limit_ns: Nanos) {
        self.control.release(STALE_AFTER, limit_ns);
    }

    /// The queues behind hooks keep packets until the departure times that the program gives them.
    pub fn give_departures(&self) {
        self.control.release(DEPARTURES, 1);
    }

    fn departures(&self) -> bool {
        self.control.read(DEPARTURES) != 0
    }

    /// What a leaf counted.
    #[must_use]
    pub fn counters(&self, leaf: usize) -> Counters {
        let at = |word| self.state.read(state_word(leaf, word));
        let tcp_bytes = at(TCP_BYTES);
        Counters {
            passed_bytes: tcp_bytes + at(OTHER_BYTES),
            passed_packets: at(PASSED_PACKETS),
            dropped_bytes: at(DROPPED_BYTES),
            dropped_packets: at(DROPPED_PACKETS),
            tcp_bytes,
            marked_packets: at(MARKED_PACKETS),
        }
    }

    /// When it was last told so.
    #[cfg(test)]
    pub(crate) fn beaten_ns(&self) -> Nanos {
        self.control.read(HEARTBEAT)
    }

    /// As if the program had counted so much more.
    #[cfg(test)]
    pub(crate) fn count(&self, leaf: usize, passed: (u64, u64), dropped: (u64, u64)) {
        let of_passed = [(OTHER_BYTES, passed.0), (PASSED_PACKETS, passed.1)];
        for (word, more) in of_passed.into_iter().chain([(DROPPED_BYTES, dropped.0), (DROPPED_PACKETS, dropped.1)]) {
            let at = state_word(leaf, word);
            self.state.release(at, self.state.read(at) + more);
        }
    }

    fn write(&self, leaf: usize, from: usize, words: &[u64]) {
        write(&self.limits, leaf, from, words);
    }
}

/// Word `word` of a leaf's `struct limits`.
fn limits_word(leaf: usize, word: usize) -> usize {
    (leaf + 1) * LIMITS_WORDS + word
}

/// Word `word` of a leaf's `struct state`.
fn state_word(leaf: usize, word: usize) -> usize {
    (leaf + 1) * STATE_WORDS + word
}

fn write(limits: &Shared, leaf: usize, from: usize, words: &[u64]) {
    for (at, &word) in words.iter().enumerate() {
        limits.release(limits_word(leaf, from + at), word);
    }
}

fn write_hold(limits: &Shared, leaf: usize, granted: Hold, fallback: Hold) {
    write(limits, leaf, GRANTED + HOLD_TCP, &granted.words());
    write(limits, leaf, FALLBACK + HOLD_TCP, &fallback.words());
}

/// Of the limits of so many leaves.
fn words_of(leaves: usize) -> usize {
    (leaves + 1) * LIMITS_WORDS
}

/// The number a hook of `leaf` carries.
#[must_use]
pub(crate) fn number(leaf: usize) -> u16 {
    (leaf + 1) as u16
}

fn word(rule: &GuardRule) -> u64 {
    let (first, last) = rule.ports.unwrap_or((0, 0));
    let dscp = rule.dscp.map_or(0, |dscp| u64::from(dscp) + 1);
    u64::from(number(rule.leaf)) | u64::from(first) << 16 | u64::from(last) << 32 | dscp << 48 | u64::from(rule.protocol.unwrap_or(0)) << 56
}

fn load(loaded: &mut Ebpf, name: &str) -> Result<(ProgramFd, u32), aya::programs::ProgramError> {
    let program = loaded.program_mut(name).unwrap_or_else(|| panic!("guard.bpf.c has a program {name}"));
    let program: &mut SchedClassifier = program.try_into()?;
    program.load()?;
    Ok((program.fd()?.try_clone()?, program.info()?.id()))
}

fn memory(loaded: &Ebpf, name: &str, words: usize) -> Result<Shared, GuardError> {
    let Some(Map::Array(map)) = loaded.map(name) else { panic!("guard.bpf.c has an array {name}") };
    let size = map.info().map_err(GuardError::new)?;
    assert_eq!(size.value_size() as usize * size.max_entries() as usize, words * 8, "the layout of {name} differs from guard.bpf.c");
    Shared::new(map.fd().as_fd(), words).map_err(GuardError::kernel(format_args!("the memory of {name}")))
}

fn number_of(loaded: &Ebpf, name: &str) -> Result<u32, GuardError> {
    let Some(Map::Array(map)) = loaded.map(name) else { panic!("guard.bpf.c has an array {name}") };
    Ok(map.info().map_err(GuardError::new)?.id())
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_word_is_where_the_program_has_it() {
        use partywall_bpf::Layout;
        let Ok(object) = partywall_bpf::object("guard") else { return eprintln!("skipped: no eBPF in this build") };
        let rates = [
            ("byte_cost", COST),
            ("packet_cost", COST + 1),
            ("byte_tolerance", TOLERANCE),
            ("packet_tolerance", TOLERANCE + 1),
            ("hold_tcp", HOLD_TCP),
            ("hold_others", HOLD_TCP + 1),
        ];
        let limits = [("granted", GRANTED), ("fallback", FALLBACK), ("rules", RULES), ("fragments", FRAGMENTS)];
        let state = [
            ("byte_due", DUE),
            ("packet_due", DUE + 1),
            ("tcp_bytes", TCP_BYTES),
            ("other_bytes", OTHER_BYTES),
            ("passed_packets", PASSED_PACKETS),
            ("dropped_bytes", DROPPED_BYTES),
            ("dropped_packets", DROPPED_PACKETS),
            ("marked_packets", MARKED_PACKETS),
            ("departure", DEPARTURE),
        ];
        let control = [("heartbeat_ns", HEARTBEAT), ("stale_after_ns", STALE_AFTER), ("departures", DEPARTURES)];
        assert_eq!(Layout::of(object, "rates"), Some(Layout::words(RATES_WORDS, &rates)));
        assert_eq!(Layout::of(object, "limits"), Some(Layout::words(LIMITS_WORDS, &limits)));
        assert_eq!(Layout::of(object, "state"), Some(Layout::words(STATE_WORDS, &state)));
        assert_eq!(Layout::of(object, "control"), Some(Layout::words(CONTROL_WORDS, &control)));
        assert_eq!((FALLBACK - GRANTED, RULES - FALLBACK, FRAGMENTS - RULES), (RATES_WORDS, RATES_WORDS, RULES_MAX));
    }

    #[test]
    fn no_rate_is_taken_for_unlimited() {
        assert_ne!(cost(0, 8, COST_SHIFT), 0);
        assert_ne!(cost(u64::MAX, 1, PACKET_SHIFT), 0);
    }

    #[test]
    fn what_is_owed_is_bytes_whatever_they_cost_now() {
        // 57 KB at next to nothing, and what they take at 10 Mb/s.
        let (nothing, ten) = (cost(0, 8, COST_SHIFT), cost(10_000_000, 8, COST_SHIFT));
        let (now, bytes) = (1 << 40, 57_000);
        let owed = |cost: u64| now + ((bytes * cost) >> COST_SHIFT);
        assert!(owed_anew(owed(nothing), now, nothing, ten).abs_diff(owed(ten)) < 1 << TIME_SHIFT);
        assert_eq!(owed_anew(owed(ten), now, ten, ten), owed(ten));
        // Who is ahead keeps what he saved.
        assert_eq!(owed_anew(now - 7, now, nothing, ten), now - 7);
        assert_eq!(owed_anew(now + 7, now, 0, ten), now + 7);
    }

    /// A frame of TCP over IPv4 with nothing in it.
    fn tcp() -> Vec<u8> {
        let mut frame = vec![0; 54];
        frame[12..14].copy_from_slice(&[8, 0]);
        (frame[14], frame[23], frame[46]) = (0x45, 6, 5 << 4);
        frame
    }

    /// What the program makes of a packet of so many segments of one byte: for how long its leaf owes then, in ns, and the bytes
    /// that it counted. The hook has no number, so that its limits are those before the first leaf's.
    fn owed_ns(bps: u64, segments: u32) -> Option<(u64, u64)> {
        use partywall_sys::bpf::{test_segmented, Segmented};
        let plane = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")).ok()?;
        let grant = Grant { bps, pps: Some(1), burst_ns: 1, packet_burst_ns: 1 };
        for (at, word) in grant.words().into_iter().enumerate() {
            plane.limits.release(at, word);
        }
        test_segmented(plane.program(true), &tcp(), Segmented { count: segments, size: 1 }).unwrap();
        let owed = (plane.state.read(0) >> TIME_SHIFT).saturating_sub(partywall_clock::system());
        Some((owed, plane.state.read(2)))
    }

    #[test]
    fn a_large_packet_in_segments_of_one_byte_costs_what_its_headers_take_at_the_lowest_rate() {
        const SEGMENTS: u32 = 65_535;
        // The headers of all segments but the first, which are in the packet.
        let bytes = 54 + 54 * u64::from(SEGMENTS - 1);
        for bps in [64_000, 10_000, 1_000_000_000] {
            let Some((owed, counted)) = owed_ns(bps, SEGMENTS) else { return };
            assert_eq!(counted, bytes);
            let takes = bytes * 8_000_000_000 / bps;
            // What it costs to run the program is time in which the debt shrinks.
            let least = takes.saturating_sub(takes / 100 + 1_000_000_000);
            assert!(owed > least && owed < takes + takes / 100, "{owed} ns owed at {bps} bit/s, not {takes}");
        }
    }

    /// Another thread takes from a bucket, as packets do, while `work` goes on: a word that it moved out of reach of `work`, from
    /// `within` to `beyond`, must stay as it is.
    fn stays(plane: &Plane, within: u64, beyond: u64, work: impl Fn() + Sync) {
        use std::sync::atomic::AtomicBool;
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    work();
                }
            });
            let due = state_word(0, DUE);
            let lost = (0..1_000_000).find(|_| {
                plane.state.release(due, within);
                plane.state.exchange(due, within, beyond) && (0..20).any(|_| plane.state.read(due) != beyond)
            });
            ended.store(true, Ordering::Relaxed);
            assert_eq!(lost, None, "a packet was not counted");
        });
    }

    #[test]
    fn a_packet_that_passes_while_its_bucket_is_filled_or_settled_is_counted() {
        let Ok(plane) = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")) else { return };
        let (now, ms) = (1 << 40, 1_000_000);
        let grant = Grant { bps: 1, pps: None, burst_ns: 10 * ms, packet_burst_ns: 0 };
        stays(&plane, (now - ms) << TIME_SHIFT, (now + ms) << TIME_SHIFT, || plane.fill(0, now, grant));
        stays(&plane, now << TIME_SHIFT, (now + 20 * ms) << TIME_SHIFT, || {
            let _ = plane.settle(0, now, 20 * ms, 20 * ms);
        });
    }

    proptest! {
        #[test]
        fn a_packets_cost_gives_the_rate_it_came_of_from_one_a_second_on(pps in 1u64..10_000_000) {
            let each = cost(pps, 1, PACKET_SHIFT);
            let rate = (UNITS_PER_SECOND << PACKET_SHIFT) as f64 / each as f64;
            prop_assert!(rate <= pps as f64 * (1.0 + 1e-9) && rate >= pps as f64 * 0.999);
        }

        #[test]
        fn a_cost_gives_the_rate_it_came_of_and_never_more(bps in 10_000u64..400_000_000_000) {
            let seconds = cost(bps, 8, COST_SHIFT) as f64 / (UNITS_PER_SECOND << COST_SHIFT) as f64;
            let rate = 8.0 / seconds;
            prop_assert!(rate <= bps as f64 * (1.0 + 1e-9) && rate >= bps as f64 * 0.999);
        }
    }
}
