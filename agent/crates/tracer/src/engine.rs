//! Converts records of all hops to reports: order, direction, alignment, and the tracer's own losses. Pure; times are passed in.

use partywall_alignment::{Aligner, Counts, Passage, Slowest};
use partywall_bpf::tc::Direction;

use crate::budget::ALL;
use crate::hop::Settings;
use crate::kept::Kept;
use crate::order::Order;
use crate::orientation::{bound, Bound, Orientation};
use crate::record::Raw;

/// How long traffic is watched for its direction before the default is used.
const WATCH_NS: u64 = 500_000_000;
/// Records stored meanwhile. Beyond it, the direction is decided on these.
const WATCH_MAX: usize = 1 << 20;

type Sinks = ((Counts, Slowest), Kept);

/// Records that the tracer missed at one hop since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopLoss {
    /// Written records.
    pub recorded: u64,
    /// Packets without a record because a ring was full: the tracer's own loss.
    pub missed: u64,
    /// Packets of protocols that are not traced.
    pub untraced: u64,
    /// Packets of traced flows on ingress and egress, as segments on the wire.
    pub counted: [u64; 2],
    /// Whether the interface has disappeared.
    pub gone: bool,
}

/// Results for one direction since the last report. Hops are in the order in which these packets pass them.
#[derive(Debug, Default)]
pub struct Way {
    /// Counts and delays.
    pub counts: Counts,
    /// Slowest first.
    pub slowest: Vec<Passage>,
    /// Some packets with any fate.
    pub packets: Vec<Passage>,
    /// Packets given up before the horizon, for lack of space.
    pub forced: u64,
}

/// All results since the last report.
#[derive(Debug, Default)]
pub struct Report {
    /// Start. Packets are counted when the horizon has passed over them, so figures lag by it.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
    /// Forward and backward.
    pub ways: [Way; 2],
    /// By hop as given.
    pub hops: Vec<HopLoss>,
    /// The hook that forward packets pass at each hop; None until it is known.
    pub hooks: Option<Vec<Direction>>,
    /// The share of recorded flows.
    pub sampled: f64,
    /// The share of the host's CPU time used for tracing.
    pub cost: Option<f64>,
    /// Packets in flight.
    pub live: u64,
}

enum State {
    Watching { orientation: Orientation, waiting: Vec<(usize, Raw)>, until_ns: Option<u64> },
    Aligning { hooks: Vec<Direction> },
}

pub(crate) struct Engine {
    state: State,
    order: Order,
    ways: [Aligner<Sinks>; 2],
    forced: [u64; 2],
    below: u64,
    one_way: bool,
}

impl Engine {
    /// For the path of `settings`, with records from this many CPUs; `spaces` identify the namespaces of hops.
    pub(crate) fn new(settings: &Settings, cpus: usize, spaces: &[u64]) -> Self {
        let given = settings.hops.iter().map(|hop| hop.hook).collect();
        let of = || {
            let alignment =
                partywall_alignment::Settings { horizon_ns: settings.horizon_ns, ..partywall_alignment::Settings::of(spaces.len()) };
            Aligner::new(alignment, ((Counts::default(), Slowest::new(settings.slowest)), Kept::new(settings.packets)))
        };
        Self {
            state: State::Watching { orientation: Orientation::new(given, spaces), waiting: Vec::new(), until_ns: None },
            order: Order::new(settings.hops.iter().map(|hop| hop.remote).collect(), cpus),
            ways: [of(), of()],
            forced: [0; 2],
            below: ALL,
            one_way: settings.one_way(),
        }
    }

    /// Takes a record. The CPU is ignored for a remote hop. Times of a CPU, and of a remote hop, never decrease.
    pub(crate) fn take(&mut self, cpu: usize, raw: Raw) {
        // Sampling elsewhere follows slightly later.
        if raw.flow() >> 32 >= self.below {
            return;
        }
        match &mut self.state {
            State::Aligning { hooks } => push(&mut self.order, hooks, self.one_way, cpu, &raw),
            State::Watching { orientation, waiting, until_ns } => {
                orientation.watch(&raw);
                until_ns.get_or_insert(raw.time_ns().saturating_add(WATCH_NS));
                waiting.push((cpu, raw));
            }
        }
    }

    /// Sets the bound on the clock error of a remote hop.
    pub(crate) fn set_bound(&mut self, hop: usize, bound_ns: u64) {
        self.order.set_bound(hop, bound_ns);
    }

    /// A CPU has reported everything that it saw before `time_ns`.
    pub(crate) fn cpu_reached(&mut self, cpu: usize, time_ns: u64) {
        self.order.cpu_reached(cpu, time_ns);
    }

    /// A remote hop has reported everything that it saw before `time_ns`.
    pub(crate) fn hop_reached(&mut self, hop: usize, time_ns: u64) {
        self.order.hop_reached(hop, time_ns);
    }

    /// Aligns the records that are complete and in order.
    pub(crate) fn advance(&mut self, now_ns: u64) {
        if let State::Watching { orientation, waiting, until_ns } = &self.state {
            let watched = until_ns.is_some_and(|until_ns| now_ns >= until_ns) || waiting.len() >= WATCH_MAX;
            if !(orientation.is_settled() || watched) {
                return;
            }
            self.decide();
        }
        for (merge, aligner) in self.order.ways.iter_mut().zip(&mut self.ways) {
            let until_ns = merge.release(|seen| aligner.push(seen));
            aligner.advance(until_ns);
        }
    }

    fn decide(&mut self) {
        let State::Watching { orientation, waiting, .. } = &mut self.state else { return };
        let (hooks, waiting) = (orientation.hooks(), std::mem::take(waiting));
        for (cpu, raw) in &waiting {
            push(&mut self.order, &hooks, self.one_way, *cpu, raw);
        }
        self.state = State::Aligning { hooks };
    }

    /// The part of the flows that is recorded.
    pub(crate) fn below(&self) -> u64 {
        self.below
    }

    /// Records only flows below this limit from now on.
    pub(crate) fn sample_below(&mut self, below: u64) {
        self.below = below;
        self.ways.iter_mut().for_each(|aligner| aligner.cut(|flow| flow >> 32 < below));
    }

    /// Begins no new packets from `at_ns` on.
    pub(crate) fn close(&mut self, at_ns: u64) {
        self.ways.iter_mut().for_each(|aligner| aligner.close(at_ns));
    }

    /// Finishes all packets. All records from before `reached_ns` have arrived.
    pub(crate) fn finish(&mut self, reached_ns: u64) {
        self.decide();
        for (merge, aligner) in self.order.ways.iter_mut().zip(&mut self.ways) {
            merge.finish(|seen| aligner.push(seen));
            aligner.advance(reached_ns);
            aligner.finish();
        }
    }

    /// By hop: written records that were dropped here for lack of space, since the last call.
    pub(crate) fn take_dropped(&mut self) -> Vec<u64> {
        self.order.take_dropped()
    }

    /// The results since the last call, without those that only the kernel side knows.
    pub(crate) fn report(&mut self) -> Report {
        let hooks = match &self.state {
            State::Watching { .. } => None,
            State::Aligning { hooks } => Some(hooks.clone()),
        };
        let live = self.ways.iter().map(|aligner| aligner.live() as u64).sum();
        let ways = [self.way(0), self.way(1)];
        Report { ways, hooks, live, sampled: self.below as f64 / ALL as f64, ..Report::default() }
    }

    fn way(&mut self, number: usize) -> Way {
        let forced = self.ways[number].forced();
        let since = forced - std::mem::replace(&mut self.forced[number], forced);
        let ((counts, slowest), kept) = self.ways[number].sink();
        Way { counts: std::mem::take(counts), slowest: slowest.take(), packets: kept.take(), forced: since }
    }
}

fn push(order: &mut Order, hooks: &[Direction], one_way: bool, cpu: usize, raw: &Raw) {
    let hop = raw.hop();
    let Some(&forward) = hooks.get(hop) else { return };
    match bound(forward, raw.hook()) {
        Bound::Forward => order.push(0, cpu, hop, raw.seen(hop as u8)),
        Bound::Backward if one_way => {}
        Bound::Backward => order.push(1, cpu, hop, raw.seen((hooks.len() - 1 - hop) as u8)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hop::{Hop, Only};
    use crate::record::place;
    use Direction::{Egress, Ingress};

    fn settings(hooks: &[Option<Direction>]) -> Settings {
        let hop = |(number, &hook): (usize, &Option<Direction>)| Hop {
            name: format!("hop {number}"),
            namespace: None,
            interface: format!("v{number}"),
            hook,
            remote: false,
        };
        Settings {
            hops: hooks.iter().enumerate().map(hop).collect(),
            horizon_ns: 1_000,
            report_ns: 1,
            budget: None,
            one_in: std::num::NonZeroU32::MIN,
            only: Only::default(),
            translations: Vec::new(),
            slowest: 2,
            packets: 3,
            ring_bytes: 0,
        }
    }

    fn raw(time_ns: u64, flow: u64, tag: u64, hop: usize, hook: Direction) -> Raw {
        Raw([time_ns, flow, tag, 100 + (u64::from(place(hop, hook)) << 40)])
    }

    fn there_and_back(engine: &mut Engine, packets: u64) {
        for tag in 0..packets {
            let at = tag * 100;
            engine.take(0, raw(at, 1, tag, 0, Egress));
            engine.take(1, raw(at + 10, 1, tag, 1, Ingress));
            engine.take(1, raw(at + 20, 2, tag, 1, Egress));
            engine.take(0, raw(at + 50, 2, tag, 0, Ingress));
        }
    }

    #[test]
    fn both_directions_are_aligned_apart_once_it_is_known_which_is_which() {
        let mut engine = Engine::new(&settings(&[None, None]), 2, &[1, 2]);
        there_and_back(&mut engine, 100);
        engine.finish(0);
        let report = engine.report();
        assert_eq!(report.hooks, Some(vec![Egress, Ingress]));
        let delivered: Vec<(u64, Option<u64>)> = report.ways.iter().map(|way| (way.counts.delivered, way.counts.total.max_ns)).collect();
        assert_eq!(delivered, [(100, Some(10)), (100, Some(30))]);
        assert_eq!((report.ways[0].slowest.len(), report.ways[0].packets.len()), (2, 3));
    }

    #[test]
    fn nothing_seen_while_watching_is_forgotten() {
        let mut engine = Engine::new(&settings(&[None, None]), 2, &[1, 2]);
        there_and_back(&mut engine, 3);
        engine.advance(1);
        assert_eq!(engine.report().hooks, None);
        (0..2).for_each(|cpu| engine.cpu_reached(cpu, 2 * WATCH_NS));
        engine.advance(2 * WATCH_NS);
        assert_eq!(engine.report().ways.map(|way| way.counts.delivered), [3, 3]);
    }

    #[test]
    fn a_clock_that_is_late_within_its_bound_makes_negative_delays_and_no_losses() {
        for remote in [0, 1] {
            let mut settings = settings(&[Some(Egress), Some(Ingress)]);
            settings.hops[remote].remote = true;
            let mut engine = Engine::new(&settings, 1, &[1, 2]);
            engine.set_bound(remote, 80);
            let piece = |time_ns, start: u64, length: u64, hop, hook| {
                Raw([time_ns, 1, start, length | 1 << 32 | u64::from(place(hop, hook)) << 40])
            };
            // Really from 100 to 110; the remote clock is off by 50, whichever way makes it worse.
            let (from_ns, to_ns) = if remote == 0 { (150, 110) } else { (100, 60) };
            engine.take(0, piece(from_ns, 1000, 200, 0, Egress));
            engine.take(0, piece(to_ns, 1000, 100, 1, Ingress));
            engine.take(0, piece(to_ns, 1100, 100, 1, Ingress));
            engine.cpu_reached(0, 10_000);
            engine.hop_reached(remote, 10_000);
            engine.advance(10_000);
            let counts = &engine.report().ways[0].counts;
            assert_eq!((counts.delivered, counts.hops[1].lost, counts.hops[1].stray, counts.total.negative), (1, 0, 0, 1), "{remote}");
        }
    }

    #[test]
    fn sampling_fewer_flows_loses_no_packet() {
        let mut engine = Engine::new(&settings(&[Some(Egress), Some(Ingress)]), 2, &[1, 2]);
        let high = 3 << 62;
        engine.take(0, raw(10, high, 1, 0, Egress));
        engine.take(1, raw(20, high, 1, 1, Ingress));
        engine.take(0, raw(30, high, 2, 0, Egress));
        (0..2).for_each(|cpu| engine.cpu_reached(cpu, 100));
        engine.advance(100);
        engine.sample_below(ALL / 2);
        engine.take(1, raw(110, high, 2, 1, Ingress));
        (0..2).for_each(|cpu| engine.cpu_reached(cpu, 10_000));
        engine.advance(10_000);
        let report = engine.report();
        let counts = &report.ways[0].counts;
        assert_eq!((counts.delivered, counts.unfinished, counts.hops[1].lost), (1, 1, 0));
        assert!((report.sampled - 0.5).abs() < 1e-9);
    }
}
