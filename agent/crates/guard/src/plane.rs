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

    /// How far the packets so far ran ahead of a leaf's rate.
    #[must_use]
    pub fn ahead(&self, leaf: usize, now: Nanos) -> Nanos {
        (self.state.read(state_word(leaf, DUE)) >> TIME_SHIFT).saturating_sub(now)
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
mod tests;
