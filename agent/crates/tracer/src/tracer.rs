//! A running trace: a thread that empties the rings, aligns records, and keeps within the budget.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use partywall_alignment::Passage;
use partywall_clock::{thread_cpu, SessionClock};

use crate::budget::{self, Price, Spent, ALL};
use crate::engine::{Engine, HopLoss, Report};
use crate::error::TraceError;
use crate::hooks::Hooks;
use crate::hop::Settings;
use crate::record::{place, Raw, Tuple};
use partywall_bpf::tc::Direction;

/// How often rings are emptied.
const POLL: Duration = Duration::from_millis(2);
/// How often the cost is compared with the budget.
const BUDGET_NS: u64 = 200_000_000;
/// A record arrives in the ring this long after its time if the hypervisor took the CPU meanwhile. A later one is out of order,
/// which cut or joined segments do not tolerate.
pub(crate) const SLACK_NS: u64 = 5_000_000;
/// The assumed cost of a packet if the program cannot be measured.
const GUESSED: Price = Price { record_ns: 150.0, other_ns: 50.0 };
/// Addresses of flows are reported once, up to this number.
pub(crate) const FLOWS_REPORTED_MAX: usize = 1 << 16;

/// A trace in progress. Dropping it removes the hooks.
pub struct Tracer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    record_ns: Option<u32>,
}

/// A tracer's output.
#[derive(Debug)]
pub struct Upshot {
    /// The results.
    pub report: Report,
    /// The addresses of newly seen flows in the report.
    pub flows: Vec<(u64, Tuple)>,
}

struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    clock: SessionClock,
    hooks: Hooks,
    engine: Engine,
    settings: Settings,
    ended: bool,
    reported_ns: u64,
    reported: Vec<HopLoss>,
    reported_flows: HashSet<u64>,
    checked_ns: u64,
    checked_work: (u64, u64),
    own_ns: u64,
    cost: Option<f64>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tracer {
    /// Starts tracing, with hooks named after `name`. All times are those of `clock`.
    ///
    /// # Errors
    ///
    /// [`TraceError`].
    pub fn start(settings: Settings, name: &str, clock: &SessionClock) -> Result<Self, TraceError> {
        let hooks = Hooks::new(&settings, name)?;
        let record_ns = hooks.price.map(|price| price.record_ns as u32);
        let engine = Engine::new(&settings, hooks.rings.cpus(), &hooks.spaces);
        hooks.rings.sample_below(ALL);
        let now = clock.now();
        let state = State {
            clock: clock.clone(),
            reported: vec![HopLoss::default(); settings.hops.len()],
            hooks,
            engine,
            settings,
            ended: false,
            reported_ns: now,
            reported_flows: HashSet::new(),
            checked_ns: now,
            checked_work: (0, 0),
            own_ns: 0,
            cost: None,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), ended: Condvar::new() });
        let followed = shared.clone();
        let body = move || follow(&followed);
        let thread = thread::Builder::new().name("trace".into()).spawn(body);
        let thread = thread.map_err(|error| TraceError::refused("starting a thread")(&error))?;
        Ok(Self { shared, thread: Some(thread), record_ns })
    }

    /// The cost of one record in the kernel on this host, if it could be measured.
    #[must_use]
    pub fn record_ns(&self) -> Option<u32> {
        self.record_ns
    }

    /// Why it ended on its own, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        let died = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        died.then(|| "its thread panicked, which is a bug".into())
    }

    /// A report when one is due.
    #[must_use]
    pub fn take(&self) -> Option<Upshot> {
        let mut state = self.shared.state();
        (state.clock.now() >= state.reported_ns + state.settings.report_ns).then(|| state.upshot())
    }

    /// Takes records of a remote hop: with this hop's number, and times converted to this host's clock by `offset_ns`, within
    /// `bound_ns`. Everything that it saw before `told_ns`, by its own clock, has been reported.
    ///
    /// # Errors
    ///
    /// [`TraceError::Request`] for a hop that is not remote.
    pub fn feed(&self, hops: &[usize], records: &[Raw], told_ns: u64, offset_ns: i64, bound_ns: u64) -> Result<(), TraceError> {
        let mut state = self.shared.state();
        if let Some(hop) = hops.iter().find(|&&hop| !state.settings.hops.get(hop).is_some_and(|hop| hop.remote)) {
            return Err(TraceError::Request(vec![format!(
                "hop {hop} is not remote, so it accepts no records; give the number of a remote hop"
            )]));
        }
        for &hop in hops {
            state.engine.set_bound(hop, bound_ns);
        }
        for raw in records {
            let Some(&hop) = hops.get(raw.hop()) else { continue };
            state.engine.take(0, raw.moved(hop, offset_ns));
        }
        for &hop in hops {
            state.engine.hop_reached(hop, told_ns.saturating_add_signed(offset_ns));
        }
        Ok(())
    }

    /// Stops tracing new packets. Returns when all packets in flight have arrived or are lost.
    #[must_use]
    pub fn close(&self) -> u64 {
        let mut state = self.shared.state();
        let now = state.clock.now();
        state.engine.close(now);
        now + state.settings.horizon_ns + SLACK_NS
    }

    /// Ends the trace, removes the hooks, and returns the rest.
    #[must_use]
    pub fn stop(mut self) -> Upshot {
        self.end();
        let mut state = self.shared.state();
        // So that all hops stop counting at the same moment.
        state.hooks.rings.sample_below(0);
        state.poll();
        let now = state.clock.now();
        state.engine.finish(now.saturating_sub(SLACK_NS));
        state.upshot()
    }

    fn end(&mut self) {
        self.shared.state().ended = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.end();
    }
}

fn follow(shared: &Shared) {
    let mut state = shared.state();
    while !state.ended {
        state.poll();
        (state, _) = shared.ended.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner);
    }
}

impl State {
    fn poll(&mut self) {
        let now = self.clock.now();
        for cpu in 0..self.hooks.rings.cpus() {
            let (engine, clock) = (&mut self.engine, &self.clock);
            self.hooks.rings.drain(cpu, |raw| engine.take(cpu, raw.by(clock)));
            self.engine.cpu_reached(cpu, now.saturating_sub(SLACK_NS));
        }
        self.engine.advance(now);
        if now >= self.checked_ns + BUDGET_NS {
            self.check_budget(now);
        }
    }

    fn check_budget(&mut self, now: u64) {
        let (records, met) = self.hooks.rings.work();
        let (records_before, met_before) = std::mem::replace(&mut self.checked_work, (records, met));
        let records = records - records_before;
        let own_ns = thread_cpu();
        let spent = Spent {
            elapsed_ns: now - self.checked_ns,
            cpus: self.hooks.cpus_online,
            records,
            others: (met - met_before).saturating_sub(records),
            price: self.hooks.price.unwrap_or(GUESSED),
            own_ns: own_ns.saturating_sub(self.own_ns),
        };
        (self.checked_ns, self.own_ns) = (now, own_ns);
        self.cost = Some(spent.share());
        let below = budget::next(self.engine.below(), spent.share(), self.settings.budget.unwrap_or(f64::INFINITY));
        if below < self.engine.below() && !self.ended {
            self.hooks.rings.sample_below(below);
            self.engine.sample_below(below);
        }
    }

    fn upshot(&mut self) -> Upshot {
        let end_ns = self.clock.now();
        let start_ns = std::mem::replace(&mut self.reported_ns, end_ns);
        let counted = losses(&self.hooks, self.settings.hops.len());
        // Written records that were dropped for lack of space count as missed.
        let losses = counted.iter().zip(&self.reported).map(|(now, before)| now.since(before)).zip(self.engine.take_dropped());
        let hops = losses.map(|(loss, dropped)| HopLoss { missed: loss.missed + dropped, ..loss }).collect();
        self.reported = counted;
        let report = Report { start_ns, end_ns, hops, cost: self.cost, ..self.engine.report() };
        let flows = self.new_flows(&report);
        Upshot { report, flows }
    }

    fn new_flows(&mut self, report: &Report) -> Vec<(u64, Tuple)> {
        let named = report.ways.iter().flat_map(|way| way.slowest.iter().chain(&way.packets)).map(|passage: &Passage| passage.flow);
        let mut new = Vec::new();
        for flow in named {
            if self.reported_flows.len() < FLOWS_REPORTED_MAX && self.reported_flows.insert(flow) {
                new.extend(self.hooks.tuple(flow).map(|tuple| (flow, tuple)));
            }
        }
        new
    }
}

impl HopLoss {
    fn since(&self, before: &Self) -> Self {
        Self {
            recorded: self.recorded.saturating_sub(before.recorded),
            missed: self.missed.saturating_sub(before.missed),
            untraced: self.untraced.saturating_sub(before.untraced),
            counted: std::array::from_fn(|side| self.counted[side].saturating_sub(before.counted[side])),
            gone: self.gone,
        }
    }
}

/// The kernel side's counters at each hop since the start, and whether the hop still exists.
pub(crate) fn losses(hooks: &Hooks, hops: usize) -> Vec<HopLoss> {
    let count = |hop| {
        let sides = [Direction::Ingress, Direction::Egress].map(|hook| hooks.rings.count(usize::from(place(hop, hook))));
        HopLoss {
            recorded: sides.iter().map(|side| side.recorded).sum(),
            missed: sides.iter().map(|side| side.lost).sum(),
            untraced: sides.iter().map(|side| side.untraced).sum(),
            counted: sides.map(|side| side.counted),
            gone: hooks.is_gone(hop),
        }
    };
    (0..hops).map(count).collect()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use partywall_bpf::Namespace;
    use partywall_clock::{monotonic, sleep_until};

    use super::*;
    use crate::hop::{Hop, Only};

    fn settings() -> Settings {
        let hop = |hook| Hop { name: "lo".into(), namespace: None, interface: "lo".into(), hook: Some(hook), remote: false };
        Settings {
            hops: vec![hop(Direction::Egress), hop(Direction::Ingress)],
            horizon_ns: 1_000_000_000,
            report_ns: 1_000_000_000,
            budget: None,
            one_in: NonZeroU32::MIN,
            only: Only::default(),
            translations: Vec::new(),
            slowest: 1,
            packets: 1,
            ring_bytes: 1 << 20,
        }
    }

    // Only a build for tests notices an overflow.
    #[cfg(debug_assertions)]
    #[test]
    fn a_trace_whose_thread_panicked_has_ended_and_says_so() {
        let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
        let outcome = namespace.inside(|| {
            let started = Tracer::start(settings(), "test", &SessionClock::default());
            let Ok(tracer) = started.map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
            assert_eq!(tracer.ended(), None);
            tracer.shared.state().checked_work.0 = u64::MAX;
            let until_ns = monotonic() + 30_000_000_000;
            while tracer.ended().is_none() {
                assert!(monotonic() < until_ns, "the trace did not say that its thread had panicked");
                sleep_until(monotonic() + 1_000_000);
            }
            Ok(())
        });
        outcome.unwrap();
    }
}
