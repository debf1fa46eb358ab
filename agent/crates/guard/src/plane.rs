//! Writes rates and rules to the data plane's maps and reads counters from them, as memory and without system calls. The layout
//! is that of `agent/bpf/guard.bpf.c`.

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

/// One bucket for bytes and one for packets.
const BUCKETS: usize = 2;
/// Packets change a bucket concurrently; an update is tried this often.
const TRIES: usize = 16;

// Word offsets of a leaf's fields in the program's structs. A test compares them with the program.
/// In `struct limits`: the granted rates, the fallback rates, the rules, the table of fragments and the detour.
const GRANTED: usize = 0;
const FALLBACK: usize = 6;
const RULES: usize = 12;
const RULES_MAX: usize = 6;
const FRAGMENTS: usize = 18;
const DETOUR: usize = 19;
const LIMITS_WORDS: usize = 20;

/// In `struct rates`, for granted and fallback rates alike: cost and tolerance of each bucket, bytes first.
const COST: usize = 0;
const TOLERANCE: usize = 2;
const HOLD_TCP: usize = 4;
#[cfg(test)]
const RATES_WORDS: usize = 6;

/// In `struct state`: the due time of each bucket, bytes first.
const DUE: usize = 0;
const TCP_BYTES: usize = 2;
const OTHER_BYTES: usize = 3;
const PASSED_PACKETS: usize = 4;
const DROPPED_BYTES: usize = 5;
const DROPPED_PACKETS: usize = 6;
const MARKED_PACKETS: usize = 7;
const DEPARTURE: usize = 8;
#[cfg(test)]
const SHARES: usize = 9;
const STATE_WORDS: usize = 11;

/// In `struct control`.
const HEARTBEAT: usize = 0;
const STALE_AFTER: usize = 1;
const DEPARTURES: usize = 2;
const CONTROL_WORDS: usize = 3;

/// Places per table of a vif, with four first fragments each. The number is lower if many vifs have a table.
const PLACES: std::ops::RangeInclusive<usize> = 16..=256;
/// Maximum places in all tables together, unless the minimum length of a table requires more.
const PLACES_IN_ALL: usize = 1 << 18;

const TIME_SHIFT: u32 = 6;
const COST_SHIFT: u32 = 20;
const PACKET_SHIFT: u32 = 8;
const UNITS_PER_SECOND: u64 = 1_000_000_000 << TIME_SHIFT;

/// The rates and bursts of a leaf. Packets are not limited if `pps` is None.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Bit/s.
    pub bps: u64,
    /// Packets/s.
    pub pps: Option<u64>,
    /// Burst of bytes, as time at `bps`.
    pub burst_ns: Nanos,
    /// Burst of packets, as time at `pps`.
    pub packet_burst_ns: Nanos,
}

impl Grant {
    /// Rounds costs up, so that no more passes than is granted.
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

/// The new due time of a bucket whose debt after `now` is converted from cost `old` to cost `new`. It stays `due` if there is no
/// debt, or if either cost is unlimited.
pub(crate) fn owed_at_new_cost(due: u64, now: u64, old: u64, new: u64) -> u64 {
    match due.checked_sub(now) {
        Some(ahead) if old != 0 && new != 0 && old != new => {
            now + u64::try_from(u128::from(ahead) * u128::from(new) / u128::from(old)).unwrap_or(u64::MAX / 2).min(u64::MAX / 2 - now)
        }
        _ => due,
    }
}

/// Time per unit of `rate`, multiplied by `times`. Never 0, because 0 means unlimited.
fn cost(rate: u64, times: u64, shift: u32) -> u64 {
    let exact = ((UNITS_PER_SECOND * times) << shift).div_ceil(rate.max(1));
    // The program's arithmetic is exact up to this cost.
    exact.clamp(1, 1 << 47)
}

/// The rates of a leaf, as another process reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafRates {
    pub bps: u64,
    pub pps: Option<u64>,
}

/// How far packets may run ahead of their rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// For TCP, which watches its own waiting bytes.
    pub tcp_ns: Nanos,
    /// For all other packets. Waiting packets stop their sender only if nothing else drains the queue.
    pub others_ns: Nanos,
}

impl Hold {
    fn words(self) -> [u64; 2] {
        [self.tcp_ns << TIME_SHIFT, self.others_ns << TIME_SHIFT]
    }
}

/// Kernel numbers by which another process finds the maps of a plane whose own process is gone.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Handle {
    programs: [u32; 2],
    lead: u32,
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

    /// Whether any hook still holds the program.
    pub fn is_hooked(self) -> bool {
        aya::programs::loaded_programs().flatten().any(|program| self.programs.contains(&program.id()))
    }

    pub fn program(self, link_header: bool) -> u32 {
        self.programs[usize::from(!link_header)]
    }

    pub fn lead(self) -> u32 {
        self.lead
    }
}

/// The maps of a plane that another process loaded.
pub(crate) struct Memory {
    limits: Shared,
    control: Shared,
}

impl Memory {
    /// Whether the heartbeat is so old that the program uses the fallback rates.
    pub fn is_stale(&self, now: Nanos) -> bool {
        let (beat, after) = (self.control.read(HEARTBEAT), self.control.read(STALE_AFTER));
        after != 0 && now > beat + after
    }

    /// The granted or the fallback rates of a leaf.
    pub fn rates(&self, leaf: usize, fallen_back: bool) -> LeafRates {
        let at = limits_word(leaf, if fallen_back { FALLBACK } else { GRANTED } + COST);
        let rate = |cost: u64, times: u64, shift: u32| ((UNITS_PER_SECOND * times) << shift).checked_div(cost);
        LeafRates {
            bps: rate(self.limits.read(at), 8, COST_SHIFT).unwrap_or(u64::MAX),
            pps: rate(self.limits.read(at + 1), 1, PACKET_SHIFT),
        }
    }

    /// See [`Plane::hold`].
    pub fn hold(&self, leaf: usize, hold: Hold) {
        write_hold(&self.limits, leaf, hold, hold);
    }
}

/// Counts since the plane was loaded.
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
    /// TCP bytes that passed.
    pub tcp_bytes: u64,
    /// Packets marked instead of dropped.
    pub marked_packets: u64,
}

/// The loaded program and its maps. Leaf 0 has number 1, because a hook without a number must not use any leaf's rates.
pub struct Plane {
    /// One for interfaces with an Ethernet header, one for those without.
    programs: [ProgramFd; 2],
    lead: ProgramFd,
    limits: Shared,
    state: Shared,
    control: Shared,
    handle: Handle,
    /// Tables of first fragments: places per table, number of tables, and number of vifs that have one.
    places: usize,
    tables: usize,
    given: AtomicUsize,
    // Owns the maps' descriptors. Hooks keep program and maps alive in the kernel.
    _loaded: Ebpf,
}

impl Plane {
    /// Loads the program with room for `leaves` leaves, and for the fragments of `tables` vifs with rules. Each leaf starts without
    /// credit, so that a restart grants no second burst.
    ///
    /// # Errors
    /// This build has no eBPF, this process's clock is not the program's, or the kernel refuses to load it.
    pub fn load(leaves: usize, tables: usize) -> Result<Self, GuardError> {
        partywall_clock::check_is_kernels().map_err(GuardError::lacking)?;
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
        let lead = load(&mut loaded, "guard_lead").map_err(refused)?;
        let handle = Handle {
            programs: [framed.1, bare.1],
            lead: lead.1,
            limits: number_of(&loaded, "guard_limits")?,
            control: number_of(&loaded, "guard_control")?,
            words: words_of(leaves),
        };
        let plane = Self {
            handle,
            programs: [framed.0, bare.0],
            lead: lead.0,
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

    /// The program to hook to an interface, depending on whether its packets begin with a link header.
    #[must_use]
    pub fn program(&self, link_header: bool) -> BorrowedFd<'_> {
        self.programs[usize::from(!link_header)].as_fd()
    }

    /// The program that matches packets of vifs with a detour, where they enter.
    #[must_use]
    pub fn lead(&self) -> BorrowedFd<'_> {
        self.lead.as_fd()
    }

    /// The numbers by which another process finds this plane.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Empties both buckets of a leaf.
    fn empty(&self, leaf: usize) {
        let now = partywall_clock::monotonic() << TIME_SHIFT;
        (0..BUCKETS).for_each(|bucket| self.state.release(state_word(leaf, DUE + bucket), now));
    }

    /// Grants a leaf its rates from the next packet on. A leaf owes bytes and packets, but a bucket stores the time that they take.
    /// A new rate therefore converts the stored time. Otherwise, a large packet sent at a very low rate would block its sender for
    /// minutes, whatever it is granted next.
    ///
    /// The order of writes keeps each burst within the one for its rate, because a low rate may come with a long burst.
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

    /// Converts a bucket's debt to the time that the same bytes take at another cost. Packets in a queue keep their times. A rate
    /// queue lets a burst pass when its rate changes; [`Plane::settle`] corrects the debt by the queue's actual content. In a
    /// departure-time queue, departure times are already assigned, and later packets must not leave earlier.
    fn owe(&self, leaf: usize, bucket: usize, now: Nanos, (old, new): (u64, u64)) {
        let now = now << TIME_SHIFT;
        let ahead = |word: usize| self.limits.read(limits_word(leaf, GRANTED + HOLD_TCP + word));
        let (due, held) = (state_word(leaf, DUE + bucket), ahead(0).max(ahead(1)));
        let from = if self.departures() { self.state.read(state_word(leaf, DEPARTURE)).max(now) } else { now };
        let stays = if self.departures() { from } else { now + 2 * held };
        self.state.update(due, TRIES, |seen| {
            let moved = owed_at_new_cost(seen, from, old, new);
            (seen > stays && moved != seen).then_some(moved)
        });
    }

    /// Fills a leaf's buckets up to the bursts of `grant`. A bucket that runs ahead of the clock, because packets wait in a queue,
    /// stays as it is.
    pub fn fill(&self, leaf: usize, now: Nanos, grant: Grant) {
        for (bucket, burst_ns) in [grant.burst_ns, grant.packet_burst_ns].into_iter().enumerate() {
            let (empty, full) = (now << TIME_SHIFT, now.saturating_sub(burst_ns) << TIME_SHIFT);
            let filled = |due: u64| (due > full && due <= empty).then_some(full);
            self.state.update(state_word(leaf, DUE + bucket), TRIES, filled);
        }
    }

    /// Charges a leaf for bytes that take `owed_ns` at its rate, and that its hook did not see. A burst pays for them first.
    pub fn charge(&self, leaf: usize, now: Nanos, owed_ns: Nanos) {
        let burst = self.limits.read(limits_word(leaf, GRANTED + TOLERANCE));
        let least = (now << TIME_SHIFT).saturating_sub(burst);
        self.state.update(state_word(leaf, DUE), TRIES, |due| Some(due.max(least) + (owed_ns << TIME_SHIFT)));
    }

    /// Sets the rates of a leaf for the time after the heartbeat stops.
    pub fn fall_back_to(&self, leaf: usize, grant: Grant) {
        self.write(leaf, FALLBACK, &grant.words());
    }

    /// Sets how far packets may run ahead of their rate because a queue behind the hook holds them back: for the granted and for the
    /// fallback rates.
    pub fn hold(&self, leaf: usize, granted: Hold, fallback: Hold) {
        write_hold(&self.limits, leaf, granted, fallback);
    }

    /// When the packets so far would have left at exactly the leaf's rates, by bytes and by packets. At most the burst of `grant`
    /// before now.
    #[must_use]
    pub fn due(&self, leaf: usize, now: Nanos, grant: Grant) -> [Nanos; 2] {
        let at = |bucket, burst_ns| {
            let due = self.state.read(state_word(leaf, DUE + bucket)) >> TIME_SHIFT;
            due.max(now.saturating_sub(burst_ns))
        };
        [at(0, grant.burst_ns), at(1, grant.packet_burst_ns)]
    }

    /// Corrects the hook's account of waiting bytes to the observed wait. Returns the correction in ns. A rate queue lets a burst
    /// pass at each rate change. Without correction, the account would run ahead, and packets would be dropped despite free space.
    /// The queue is also slightly slower than the hook, so that too much would wait in the long run. Applies to bytes only,
    /// because these are what the queue limits. A departure-time queue follows the account.
    #[must_use]
    pub fn settle(&self, leaf: usize, now: Nanos, wait_ns: Nanos, hold_ns: Nanos) -> i64 {
        let (observed, slack) = ((now + wait_ns) << TIME_SHIFT, (hold_ns / 4) << TIME_SHIFT);
        let settled = |account: u64| {
            let behind = wait_ns > hold_ns / 4 && account + slack < observed;
            (account > observed + slack || behind).then_some(observed)
        };
        let moved = self.state.update(state_word(leaf, DUE), TRIES, settled);
        moved.map_or(0, |(account, observed)| (observed.cast_signed() - account.cast_signed()) >> TIME_SHIFT)
    }

    /// Sets, once, the rules that assign packets of hook `leaf` to leaves.
    ///
    /// # Errors
    /// There are more rules than fit, or more hooks with rules than tables.
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

    /// Sends packets of hook `leaf` through interface `index`, whose hook then decides. 0: they are decided at the hook itself.
    pub fn detour(&self, leaf: usize, index: u32) {
        self.write(leaf, DETOUR, &[index.into()]);
    }

    /// Allocates the next free table.
    fn table(&self) -> Result<u64, GuardError> {
        let given = self.given.fetch_add(1, Ordering::Relaxed);
        if given >= self.tables {
            return Err(GuardError::usage(format_args!("rules at more than {} hooks", self.tables)));
        }
        Ok((self.places as u64) << 32 | (given * self.places) as u64)
    }

    /// Writes the heartbeat.
    pub fn beat(&self, now: Nanos) {
        self.control.release(HEARTBEAT, now);
    }

    /// Sets the age of the heartbeat after which the program falls back. 0 means never.
    pub fn stale_after(&self, limit_ns: Nanos) {
        self.control.release(STALE_AFTER, limit_ns);
    }

    /// Makes the program write departure times, which the queues behind the hooks apply.
    pub fn give_departures(&self) {
        self.control.release(DEPARTURES, 1);
    }

    fn departures(&self) -> bool {
        self.control.read(DEPARTURES) != 0
    }

    /// The counters of a leaf.
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

    /// See [`Plane::detour`].
    #[cfg(test)]
    pub(crate) fn detour_of(&self, leaf: usize) -> u64 {
        self.limits.read(limits_word(leaf, DETOUR))
    }

    /// Time of the last heartbeat.
    #[cfg(test)]
    pub(crate) fn beaten_ns(&self) -> Nanos {
        self.control.read(HEARTBEAT)
    }

    /// Adds to the program's counters.
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

/// Offset of word `word` in a leaf's `struct limits`.
fn limits_word(leaf: usize, word: usize) -> usize {
    (leaf + 1) * LIMITS_WORDS + word
}

/// Offset of word `word` in a leaf's `struct state`.
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

/// Number of words in the limits of `leaves` leaves.
fn words_of(leaves: usize) -> usize {
    (leaves + 1) * LIMITS_WORDS
}

/// The number in the hook of `leaf`.
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
    fn each_word_has_its_offset_in_the_program() {
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
        let limits = [("granted", GRANTED), ("fallback", FALLBACK), ("rules", RULES), ("fragments", FRAGMENTS), ("detour", DETOUR)];
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
            ("sparse_due", SHARES),
            ("neighbour_due", SHARES + 1),
        ];
        let control = [("heartbeat_ns", HEARTBEAT), ("stale_after_ns", STALE_AFTER), ("departures", DEPARTURES)];
        assert_eq!(Layout::of(object, "rates"), Some(Layout::words(RATES_WORDS, &rates)));
        assert_eq!(Layout::of(object, "limits"), Some(Layout::words(LIMITS_WORDS, &limits)));
        assert_eq!(Layout::of(object, "state"), Some(Layout::words(STATE_WORDS, &state)));
        assert_eq!(Layout::of(object, "control"), Some(Layout::words(CONTROL_WORDS, &control)));
        assert_eq!((FALLBACK - GRANTED, RULES - FALLBACK, FRAGMENTS - RULES), (RATES_WORDS, RATES_WORDS, RULES_MAX));
    }

    #[test]
    fn a_rate_of_0_is_not_unlimited() {
        assert_ne!(cost(0, 8, COST_SHIFT), 0);
        assert_ne!(cost(u64::MAX, 1, PACKET_SHIFT), 0);
    }

    #[test]
    fn a_debt_is_in_bytes_and_is_converted_to_the_new_cost() {
        // 57 KB at a rate of 0, and the time that they take at 10 Mb/s.
        let (nothing, ten) = (cost(0, 8, COST_SHIFT), cost(10_000_000, 8, COST_SHIFT));
        let (now, bytes) = (1 << 40, 57_000);
        let owed = |cost: u64| now + ((bytes * cost) >> COST_SHIFT);
        assert!(owed_at_new_cost(owed(nothing), now, nothing, ten).abs_diff(owed(ten)) < 1 << TIME_SHIFT);
        assert_eq!(owed_at_new_cost(owed(ten), now, ten, ten), owed(ten));
        // Saved credit stays.
        assert_eq!(owed_at_new_cost(now - 7, now, nothing, ten), now - 7);
        assert_eq!(owed_at_new_cost(now + 7, now, 0, ten), now + 7);
    }

    #[test]
    fn what_passed_no_hook_is_paid_by_the_burst_and_then_by_time() {
        let Ok(plane) = Plane::load(1, 0) else { return eprintln!("skipped: eBPF") };
        let (now, burst_ns) = (5_000_000_000, 10_000_000);
        let grant = Grant { bps: 8_000_000, pps: None, burst_ns, packet_burst_ns: burst_ns };
        plane.state.release(state_word(0, DUE), 0);
        plane.grant(0, now, grant);
        plane.charge(0, now, 4_000_000);
        assert_eq!(plane.due(0, now, grant)[0], now - 6_000_000);
        plane.charge(0, now, 50_000_000);
        assert_eq!(plane.due(0, now, grant)[0], now + 44_000_000);
    }

    /// An empty TCP frame over IPv4.
    fn tcp() -> Vec<u8> {
        let mut frame = vec![0; 54];
        frame[12..14].copy_from_slice(&[8, 0]);
        (frame[14], frame[23], frame[46]) = (0x45, 6, 5 << 4);
        frame
    }

    /// Runs the program on a packet of `segments` segments of one byte. Returns the leaf's debt in ns and the counted bytes. The hook
    /// has no number, so its limits are those before the first leaf's.
    fn owed_ns(bps: u64, segments: u32) -> Option<(u64, u64)> {
        use partywall_sys::bpf::{test_segmented, Segmented};
        let plane = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")).ok()?;
        let grant = Grant { bps, pps: Some(1), burst_ns: 1, packet_burst_ns: 1 };
        for (at, word) in grant.words().into_iter().enumerate() {
            plane.limits.release(at, word);
        }
        test_segmented(plane.program(true), &tcp(), Segmented { count: segments, size: 1 }).unwrap();
        let owed = (plane.state.read(0) >> TIME_SHIFT).saturating_sub(partywall_clock::monotonic());
        Some((owed, plane.state.read(2)))
    }

    #[test]
    fn a_large_packet_in_segments_of_one_byte_costs_what_its_headers_take_at_the_lowest_rate() {
        const SEGMENTS: u32 = 65_535;
        // The headers of all segments after the first, whose header is in the packet.
        let bytes = 54 + 54 * u64::from(SEGMENTS - 1);
        for bps in [64_000, 10_000, 1_000_000_000] {
            let Some((owed, counted)) = owed_ns(bps, SEGMENTS) else { return };
            assert_eq!(counted, bytes);
            let takes = bytes * 8_000_000_000 / bps;
            // The debt shrinks while the program runs.
            let least = takes.saturating_sub(takes / 100 + 1_000_000_000);
            assert!(owed > least && owed < takes + takes / 100, "{owed} ns owed at {bps} bit/s, not {takes}");
        }
    }

    const IPV4: u16 = 0x0800;
    const IPV6: u16 = 0x86dd;
    const FRAME: u16 = 0x6558;
    const TCP: u8 = 6;
    const UDP: u8 = 17;

    fn joined(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    fn frame(kind: u16, packet: &[u8]) -> Vec<u8> {
        joined(&[&[2; 12], &kind.to_be_bytes(), packet])
    }

    fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = [0; 20];
        (header[0], header[9]) = (0x45, protocol);
        joined(&[&header, payload])
    }

    fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = [0; 40];
        (header[0], header[6]) = (0x60, next);
        joined(&[&header, payload])
    }

    fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
        joined(&[&[0; 2], &port.to_be_bytes(), &[0; 4], payload])
    }

    /// TCP with the option of time stamps.
    fn segment(data: &[u8]) -> Vec<u8> {
        let mut header = [0; 32];
        header[12] = 8 << 4;
        joined(&[&header, data])
    }

    fn vxlan(port: u16, head: [u8; 4], payload: &[u8]) -> Vec<u8> {
        udp(port, &joined(&[&head, &[0, 0, 7, 0], payload]))
    }

    fn geneve(options: u8, carries: u16, payload: &[u8]) -> Vec<u8> {
        let options_bytes = vec![0xff; 4 * usize::from(options)];
        udp(6081, &joined(&[&[options, 0], &carries.to_be_bytes(), &[0, 0, 7, 0], &options_bytes, payload]))
    }

    fn gre(flags: u8, carries: u16, payload: &[u8]) -> Vec<u8> {
        let options = vec![0xff; 4 * (flags >> 4).count_ones() as usize];
        joined(&[&[flags, 0], &carries.to_be_bytes(), &options, payload])
    }

    /// The tunnels that the program looks into, each with `inner`, an IPv4 packet, `inner_6`, an IPv6 packet, or a frame of either.
    fn tunnels(inner: &[u8], inner_6: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
        let plain = frame(IPV4, inner);
        let tagged = joined(&[&[2; 12], &[0x81, 0, 0, 5], &IPV4.to_be_bytes(), inner]);
        let over_4 = |protocol: u8, payload: &[u8]| frame(IPV4, &ipv4(protocol, payload));
        let over_6 = |protocol: u8, payload: &[u8]| frame(IPV6, &ipv6(protocol, payload));
        // A limit of encapsulation, as the kernel's own IPv6 tunnels send it.
        let limited = joined(&[&[41, 0, 4, 1, 4, 1, 0, 0], inner_6]);
        vec![
            ("VXLAN", over_4(UDP, &vxlan(4789, [8, 0, 0, 0], &plain))),
            ("VXLAN on the kernel's port", over_4(UDP, &vxlan(8472, [8, 0, 0, 0], &plain))),
            ("VXLAN on a port of its own", over_4(UDP, &vxlan(53, [8, 0, 0, 0], &plain))),
            ("VXLAN with a tag inside", over_4(UDP, &vxlan(4789, [8, 0, 0, 0], &tagged))),
            ("VXLAN with a group", over_4(UDP, &vxlan(4789, [0x88, 0, 0x65, 0x58], &plain))),
            ("VXLAN of IPv6 over IPv6", over_6(UDP, &vxlan(4789, [8, 0, 0, 0], &frame(IPV6, inner_6)))),
            ("VXLAN-GPE of frames", over_4(UDP, &vxlan(4790, [0xc, 0, 0, 3], &plain))),
            ("VXLAN-GPE of IPv4", over_4(UDP, &vxlan(4790, [0xc, 0, 0, 1], inner))),
            ("VXLAN-GPE of IPv6", over_4(UDP, &vxlan(4790, [0xc, 0, 0, 2], inner_6))),
            ("GENEVE", over_4(UDP, &geneve(0, FRAME, &plain))),
            ("GENEVE with options", over_6(UDP, &geneve(10, FRAME, &plain))),
            ("GENEVE of IPv4", over_4(UDP, &geneve(2, IPV4, inner))),
            ("GENEVE of IPv6", over_4(UDP, &geneve(63, IPV6, inner_6))),
            ("GRE", over_4(47, &gre(0, IPV4, inner))),
            ("GRE with all options", over_4(47, &gre(0xb0, IPV6, inner_6))),
            ("GRE with a key", over_6(47, &gre(0x20, IPV4, inner))),
            ("GRE of frames", over_4(47, &gre(0, FRAME, &plain))),
            ("IPIP", over_4(4, inner)),
            ("SIT", over_4(41, inner_6)),
            ("IPv4 in IPv6", over_6(4, inner)),
            ("IPv6 in IPv6", over_6(60, &limited)),
        ]
    }

    /// What the program counts for a packet: TCP bytes, other bytes and packets.
    fn counted(plane: &Plane, packet: &[u8], count: u32, size: u32) -> [u64; 3] {
        use partywall_sys::bpf::{test_segmented, Segmented};
        let read = || [TCP_BYTES, OTHER_BYTES, PASSED_PACKETS].map(|word| plane.state.read(word));
        let before = read();
        test_segmented(plane.program(true), packet, Segmented { count, size }).unwrap();
        let after = read();
        std::array::from_fn(|at| after[at] - before[at])
    }

    #[test]
    fn each_segment_in_a_tunnel_costs_all_of_its_headers_and_tcp_counts_as_such() {
        let Ok(plane) = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")) else { return };
        let (segments, size) = (10, 100);
        let data = vec![0xff; segments * size];
        let tcp = segment(&data);
        for (name, packet) in tunnels(&ipv4(TCP, &tcp), &ipv6(TCP, &tcp)) {
            let bytes = (packet.len() - data.len()) * segments + data.len();
            assert_eq!(counted(&plane, &packet, segments as u32, size as u32), [bytes as u64, 0, segments as u64], "{name}");
            assert_eq!(counted(&plane, &packet, 0, 0), [packet.len() as u64, 0, 1], "{name}");
        }
        let datagram = udp(9, &data);
        for (name, packet) in tunnels(&ipv4(UDP, &datagram), &ipv6(UDP, &datagram)) {
            let bytes = (packet.len() - data.len()) * segments + data.len();
            assert_eq!(counted(&plane, &packet, segments as u32, size as u32), [0, bytes as u64, segments as u64], "{name}");
        }
    }

    #[test]
    fn inner_headers_in_a_packet_without_a_number_of_segments_never_lower_its_cost() {
        let Ok(plane) = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")) else { return };
        // An extension header that leads behind the end of the packet.
        let beyond = joined(&[&[TCP, 255], &[0; 998]]);
        let forged = frame(IPV4, &ipv4(UDP, &vxlan(4789, [8, 0, 0, 0], &frame(IPV6, &ipv6(60, &beyond)))));
        let [_, _, packets] = counted(&plane, &forged, 0, 1);
        assert!(packets as usize >= forged.len() - 42, "{packets} packets");
        let tcp = segment(&[0xff; 1000]);
        for (name, packet) in tunnels(&ipv4(TCP, &tcp), &ipv6(TCP, &tcp)) {
            let headers = packet.len() - 1000;
            let [bytes, _, packets] = counted(&plane, &packet, 0, 100);
            assert!(packets >= 10 && packets as usize <= 10 + headers.div_ceil(100), "{name}: {packets} packets");
            assert_eq!(bytes, packet.len() as u64 + (packets - 1) * headers as u64, "{name}");
        }
    }

    #[test]
    fn what_no_tunnel_can_be_seen_in_counts_with_its_outer_headers() {
        let Ok(plane) = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")) else { return };
        let tcp = ipv4(TCP, &segment(&[0xff; 1000]));
        let outer = 14 + 20 + 8;
        for payload in [
            udp(51820, &joined(&[&[4, 0, 0, 0], &[0xa5; 1080]])),
            vxlan(4789, [0; 4], &frame(IPV4, &tcp)),
            vxlan(4789, [8, 0, 0, 0], &frame(0x8847, &tcp)),
            geneve(0, 0x8847, &tcp),
        ] {
            let packet = frame(IPV4, &ipv4(UDP, &payload));
            assert_eq!(counted(&plane, &packet, 10, 100), [0, packet.len() as u64 + 9 * outer, 10]);
        }
        let routed = frame(IPV4, &ipv4(47, &gre(0x40, IPV4, &tcp)));
        assert_eq!(counted(&plane, &routed, 10, 100), [0, routed.len() as u64 + 9 * outer, 10]);
    }

    #[test]
    fn a_tunnels_packet_that_ends_anywhere_is_counted() {
        let Ok(plane) = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")) else { return };
        let tcp = segment(&[0xff; 10]);
        for (name, packet) in tunnels(&ipv4(TCP, &tcp), &ipv6(TCP, &tcp)) {
            // The kernel runs no program on less than the outer headers.
            let least = if packet[12..14] == IPV4.to_be_bytes() { 34 } else { 54 };
            for end in least..packet.len() {
                let [tcp_bytes, other_bytes, packets] = counted(&plane, &packet[..end], 4, 10);
                assert!(tcp_bytes + other_bytes >= end as u64 && packets == 4, "{name} that ends after {end} bytes");
            }
        }
    }

    /// Runs `work` while another thread takes from a bucket, as packets do. A word that the thread moved out of the range of `work`,
    /// from `within` to `beyond`, must not change.
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
        fn a_packets_cost_converts_back_to_its_rate_from_one_per_second_on(pps in 1u64..10_000_000) {
            let each = cost(pps, 1, PACKET_SHIFT);
            let rate = (UNITS_PER_SECOND << PACKET_SHIFT) as f64 / each as f64;
            prop_assert!(rate <= pps as f64 * (1.0 + 1e-9) && rate >= pps as f64 * 0.999);
        }

        #[test]
        fn a_cost_converts_back_to_its_rate_and_never_to_more(bps in 10_000u64..400_000_000_000) {
            let seconds = cost(bps, 8, COST_SHIFT) as f64 / (UNITS_PER_SECOND << COST_SHIFT) as f64;
            let rate = 8.0 / seconds;
            prop_assert!(rate <= bps as f64 * (1.0 + 1e-9) && rate >= bps as f64 * 0.999);
        }
    }
}
