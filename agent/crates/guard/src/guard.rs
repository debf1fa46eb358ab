//! A running guard: hooks in place, a thread that keeps the rates, looks at the interfaces, and leaves reports to be taken.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use partywall_clock::{self as clock, Nanos};
use partywall_wire::{GuardExcess, GuardFinding, GuardNote, GuardRemove, GuardRow, GuardStart};

use crate::check::{judge, Allowed, Judgement, Reading};
use crate::error::GuardError;
use crate::place::{remove, Look, Networks, Place, HOLD_NS};
use crate::plane::{Counters, Plane};
use crate::round::Rounds;

const LEAVES_MAX: usize = 65_000;

/// What happened since the last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// When its time began.
    pub from_ns: Nanos,
    /// When it ended.
    pub at_ns: Nanos,
    /// One a leaf.
    pub rows: Vec<GuardRow>,
    /// What the independent check found.
    pub notes: Vec<GuardNote>,
    /// The longest that reading, deciding and writing took.
    pub round_ns_max: Nanos,
}

/// A running guard. Dropped it stops deciding, as if it had died: hooks and rates stay.
pub struct Guard {
    shared: Arc<Shared>,
    excess: Vec<GuardExcess>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    reports: Vec<Report>,
    ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `at_ns`; false if the guard was ended meanwhile.
    fn wait_until(&self, at_ns: Nanos) -> bool {
        let left = Duration::from_nanos(at_ns.saturating_sub(clock::now()));
        let waited = self.changed.wait_timeout_while(self.state(), left, |state| !state.ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.ended
    }
}

impl Guard {
    /// Hooks the data plane to every place and begins. If one place fails, nothing is left at the others.
    ///
    /// # Errors
    /// A number that names nothing, an interface that is not there, or a refusal of the kernel's; each names the thing.
    pub fn start(start: &GuardStart) -> Result<Self, GuardError> {
        checked(start)?;
        let mut networks = Networks::default();
        let mut places = start
            .hooks
            .iter()
            .map(|hook| Place::find(&mut networks, hook, start.leaves[hook.leaf].burst_ns))
            .collect::<Result<Vec<_>, _>>()?;
        let plane = Plane::load(start.leaves.len())?;
        let mut rounds = Rounds::new(start, clock::now());
        prepare(start, &plane, &mut rounds, &places)?;
        if let Err(error) = put_all(start, &plane, &rounds, &mut places) {
            let _ = remove(&GuardRemove { hooks: start.hooks.clone() });
            return Err(error);
        }
        let excess = places.iter().map(|place| place.excess).collect();
        let shared = Arc::<Shared>::default();
        let mut daemon = Daemon::new(start.clone(), plane, rounds, places);
        let followed = shared.clone();
        let body = move || daemon.run(&followed);
        let thread = thread::Builder::new().name("guard".into()).spawn(body).map_err(GuardError::kernel("a thread"))?;
        Ok(Self { shared, excess, thread: Some(thread) })
    }

    /// What becomes of what may not pass, at each hook.
    #[must_use]
    pub fn excess(&self) -> &[GuardExcess] {
        &self.excess
    }

    /// The reports since the last call.
    #[must_use]
    pub fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut self.shared.state().reports)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The numbers of a policy made flat name what is there.
fn checked(start: &GuardStart) -> Result<(), GuardError> {
    if start.leaves.len() > LEAVES_MAX {
        return Err(GuardError::new(format_args!("{} leaves; one guard keeps {LEAVES_MAX}", start.leaves.len())));
    }
    let pools = start.leaves.iter().all(|leaf| leaf.pool < start.pools.len());
    let totals = start.leaves.iter().all(|leaf| leaf.total.is_none_or(|total| total < start.totals.len()));
    let used = start.hooks.iter().flat_map(|hook| hook.rules.iter().map(|rule| rule.leaf).chain([hook.leaf]));
    let leaves = used.into_iter().all(|leaf| leaf < start.leaves.len());
    let periods = start.period_ns >= 1_000_000 && start.report_ns >= start.period_ns && start.check_ns >= start.period_ns;
    match (pools && totals && leaves, periods) {
        (false, _) => Err(GuardError::new("a leaf, hook or rule names a pool, total or leaf that is not in the lists")),
        (_, false) => Err(GuardError::new("period_ns is below 1 ms, or report_ns or check_ns below period_ns")),
        _ => Ok(()),
    }
}

/// Everything is in memory before the first packet is met.
fn prepare(start: &GuardStart, plane: &Plane, rounds: &mut Rounds, places: &[Place]) -> Result<(), GuardError> {
    for (leaf, grant) in rounds.grants().iter().enumerate() {
        plane.grant(leaf, *grant);
        plane.fall_back_to(leaf, rounds.fallback(leaf));
    }
    for (at, place) in places.iter().enumerate() {
        plane.rules(start.hooks[at].leaf, &start.hooks[at].rules)?;
        if place.excess == GuardExcess::Held {
            for leaf in leaves_of(start, at) {
                plane.hold(leaf, HOLD_NS);
                rounds.held(leaf);
            }
        }
    }
    plane.beat(clock::now());
    plane.stale_after(start.fallback_after_ns.unwrap_or(0));
    Ok(())
}

fn leaves_of(start: &GuardStart, hook: usize) -> impl Iterator<Item = usize> + '_ {
    let hook = &start.hooks[hook];
    std::iter::once(hook.leaf).chain(hook.rules.iter().map(|rule| rule.leaf))
}

fn put_all(start: &GuardStart, plane: &Plane, rounds: &Rounds, places: &mut [Place]) -> Result<(), GuardError> {
    for (at, place) in places.iter_mut().enumerate() {
        place.pace(paced(start, rounds, at))?;
        place.put(plane)?;
    }
    Ok(())
}

/// The rate of the queue behind hook `at`: what its leaves are granted, and never less than they are promised, for a queue can't
/// fall back by itself when nobody decides any more. Below the promise the hook alone decides.
fn paced(start: &GuardStart, rounds: &Rounds, at: usize) -> u64 {
    leaves_of(start, at).map(|leaf| rounds.grants()[leaf].bps.max(rounds.fallback(leaf).bps)).sum()
}

struct Daemon {
    start: GuardStart,
    plane: Plane,
    rounds: Rounds,
    places: Vec<Place>,
    readings: Vec<Option<Reading>>,
    lost: Vec<bool>,
    reported: Vec<Counters>,
    reported_ns: Nanos,
    notes: Vec<GuardNote>,
    round_ns_max: Nanos,
    looked: usize,
}

impl Daemon {
    fn new(start: GuardStart, plane: Plane, rounds: Rounds, places: Vec<Place>) -> Self {
        let readings = vec![None; places.len()];
        let lost = vec![false; places.len()];
        let reported = vec![Counters::default(); start.leaves.len()];
        let now = clock::now();
        Self { start, plane, rounds, places, readings, lost, reported, reported_ns: now, notes: vec![], round_ns_max: 0, looked: 0 }
    }

    fn run(&mut self, shared: &Shared) {
        let mut next = clock::now();
        for round in 1.. {
            // A round that was missed is not made up for: two at once would see a period of nothing.
            next = (next + self.start.period_ns).max(clock::now());
            if !shared.wait_until(next) {
                return;
            }
            self.round();
            self.look_at_some(round);
            if clock::now() >= self.reported_ns + self.start.report_ns {
                let report = self.report();
                shared.state().reports.push(report);
            }
        }
    }

    fn round(&mut self) {
        let now = clock::now();
        self.rounds.run(&self.plane, now);
        self.plane.beat(now);
        self.round_ns_max = self.round_ns_max.max(clock::now() - now);
        for at in 0..self.places.len() {
            let bps = paced(&self.start, &self.rounds, at);
            // A queue that can't be changed shows at the next look, with what is wrong.
            let _ = self.places[at].pace(bps);
        }
    }

    /// Each place once in `check_ns`, spread over its rounds, so that a thousand don't come at once.
    fn look_at_some(&mut self, round: usize) {
        let rounds = (self.start.check_ns / self.start.period_ns).max(1) as usize;
        while self.looked < round * self.places.len() / rounds {
            self.look(self.looked % self.places.len());
            self.looked += 1;
        }
    }

    fn look(&mut self, at: usize) {
        let found = match self.places[at].look(&self.plane) {
            Ok(Look::Whole) => None,
            Ok(Look::Repaired) => Some((GuardFinding::Repaired, "hook or queue had been removed; it is there again".to_owned())),
            Ok(Look::Moved) => Some((GuardFinding::Repaired, "the interface had been made anew; the hook is there again".to_owned())),
            Err(error) => Some((GuardFinding::Lost, error.to_string())),
        };
        let lost = matches!(found, Some((GuardFinding::Lost, _)));
        if let Some((kind, text)) = found.filter(|_| !(lost && self.lost[at])) {
            self.notes.push(GuardNote { hook: at, kind, text });
            self.readings[at] = None;
        }
        self.lost[at] = lost;
        if !lost {
            self.compare(at);
        }
    }

    fn compare(&mut self, at: usize) {
        let Ok(interface_bytes) = self.places[at].bytes() else { return };
        let dropped_too = self.places[at].counts_dropped();
        let counted = leaves_of(&self.start, at).map(|leaf| self.plane.counters(leaf));
        let hook_bytes = counted.map(|c| c.passed_bytes + if dropped_too { c.dropped_bytes } else { 0 }).sum();
        let now = Reading { at_ns: clock::now(), interface_bytes, hook_bytes };
        if let Some(before) = self.readings[at].replace(now) {
            let (kind, text) = match judge(before, now, self.allowed(at), !dropped_too) {
                Judgement::Fine => return,
                Judgement::Bypassed(bytes) => (GuardFinding::Bypassed, format!("{bytes} bytes went round the hook")),
                Judgement::Exceeded(bytes) => (GuardFinding::Exceeded, format!("{bytes} bytes above the ceiling")),
            };
            self.notes.push(GuardNote { hook: at, kind, text });
        }
    }

    fn allowed(&self, at: usize) -> Allowed {
        let leaves = || leaves_of(&self.start, at).map(|leaf| &self.start.leaves[leaf]);
        let held = |ns: Nanos, bps: u64| (u128::from(bps) * u128::from(ns) / 8_000_000_000) as u64;
        Allowed {
            ceiling_bps: leaves().map(|leaf| leaf.ceiling_bps).sum(),
            burst_bytes: leaves().map(|leaf| held(leaf.burst_ns + 2 * HOLD_NS, leaf.ceiling_bps)).sum(),
        }
    }

    fn report(&mut self) -> Report {
        let (from_ns, at_ns) = (self.reported_ns, clock::now());
        let rows = (0..self.start.leaves.len()).map(|leaf| self.row(leaf, at_ns - from_ns)).collect();
        self.reported_ns = at_ns;
        let round_ns_max = std::mem::take(&mut self.round_ns_max);
        Report { from_ns, at_ns, rows, notes: std::mem::take(&mut self.notes), round_ns_max }
    }

    fn row(&mut self, leaf: usize, elapsed: Nanos) -> GuardRow {
        let now = self.plane.counters(leaf);
        let before = std::mem::replace(&mut self.reported[leaf], now);
        let rate = |count: u64| (u128::from(count) * 1_000_000_000 / u128::from(elapsed.max(1))) as u64;
        let (passed, dropped) = (now.passed_bytes - before.passed_bytes, now.dropped_bytes - before.dropped_bytes);
        let passed_packets = now.passed_packets - before.passed_packets;
        let dropped_packets = now.dropped_packets - before.dropped_packets;
        let granted = self.rounds.grants()[leaf];
        GuardRow {
            offered_bps: rate((passed + dropped) * 8),
            passed_bps: rate(passed * 8),
            offered_pps: rate(passed_packets + dropped_packets),
            passed_pps: rate(passed_packets),
            dropped_packets,
            marked_packets: now.marked_packets - before.marked_packets,
            granted_bps: granted.bps,
            granted_pps: granted.pps,
        }
    }
}
