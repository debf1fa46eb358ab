//! A running guard: hooks in place, a thread that keeps the rates, looks at the interfaces, and leaves reports to be taken.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use partywall_allocation::Throttle;
use partywall_clock::{self as clock, Nanos};
use partywall_wire::{GuardExcess, GuardFinding, GuardGoal, GuardNote, GuardPoolRow, GuardRemove, GuardRow, GuardStart};

use crate::check::{judge, Allowed, Judgement, Reading};
use crate::delay::{Wait, Waits};
use crate::error::GuardError;
use crate::place::{remove, Link, Look, Networks, Pace, Place};
use crate::plane::{Counters, Hold, Plane};
use crate::round::Rounds;

const LEAVES_MAX: usize = 65_000;
/// Queues of vifs looked at in one round; thousands take turns. Those with a goal are looked at in each.
const LOOKED_AT: usize = 32;
/// Queues put in one round, for each takes the kernel a moment.
const PUT_AT_ONCE: usize = 16;
/// How long nothing must come before a queue is taken away.
const IDLE_NS: Nanos = 10_000_000_000;

/// What happened since the last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// When its time began.
    pub from_ns: Nanos,
    /// When it ended.
    pub at_ns: Nanos,
    /// One a leaf.
    pub rows: Vec<GuardRow>,
    /// One a pool.
    pub pools: Vec<GuardPoolRow>,
    /// What the independent check found.
    pub notes: Vec<GuardNote>,
    /// The longest that reading, deciding and writing took.
    pub round_ns_max: Nanos,
    /// The longest that deciding alone took.
    pub decide_ns_max: Nanos,
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
        let mut places =
            start.hooks.iter().map(|hook| Place::find(&mut networks, hook, &start.leaves[hook.leaf])).collect::<Result<Vec<_>, _>>()?;
        let links = links(start, &mut networks)?;
        let plane = Plane::load(start.leaves.len())?;
        let mut rounds = Rounds::new(start, clock::now());
        prepare(start, &plane, &mut rounds, &places)?;
        if let Err(error) = put_all(start, &plane, &rounds, &mut places) {
            let _ = remove(&GuardRemove { hooks: start.hooks.clone() });
            return Err(error);
        }
        let excess = places.iter().map(|place| place.excess).collect();
        let shared = Arc::<Shared>::default();
        let mut daemon = Daemon::new(start.clone(), plane, rounds, places, links);
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
    let pools = pools && start.goals.iter().all(|goal| goal.pool < start.pools.len());
    let totals = start.leaves.iter().all(|leaf| leaf.totals.iter().all(|&total| total < start.totals.len()));
    let used = start.hooks.iter().flat_map(|hook| hook.rules.iter().map(|rule| rule.leaf).chain([hook.leaf]));
    let leaves = used.chain(start.goals.iter().flat_map(|goal| goal.leaves.iter().copied())).all(|leaf| leaf < start.leaves.len());
    let periods = start.period_ns >= 1_000_000 && start.report_ns >= start.period_ns && start.check_ns >= start.period_ns;
    match (pools && totals && leaves, periods) {
        (false, _) => Err(GuardError::new("a leaf, hook or rule names a pool, total or leaf that is not in the lists")),
        (_, false) => Err(GuardError::new("period_ns is below 1 ms, or report_ns or check_ns below period_ns")),
        _ => Ok(()),
    }
}

fn links(start: &GuardStart, networks: &mut Networks) -> Result<Vec<Option<Link>>, GuardError> {
    let find = |pool: &partywall_wire::GuardPool| pool.link.as_ref().map(|link| Link::find(networks, link, pool.capacity_bps)).transpose();
    start.pools.iter().map(find).collect()
}

/// Everything is in memory before the first packet is met.
fn prepare(start: &GuardStart, plane: &Plane, rounds: &mut Rounds, places: &[Place]) -> Result<(), GuardError> {
    for (leaf, grant) in rounds.grants().iter().enumerate() {
        plane.grant(leaf, *grant);
        plane.fall_back_to(leaf, rounds.fallback(leaf));
    }
    for (at, place) in places.iter().enumerate() {
        plane.rules(start.hooks[at].leaf, &start.hooks[at].rules)?;
        if place.has_queue() {
            hold(start, plane, rounds, at, true);
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
        if place.has_queue() {
            place.pace(paced(start, rounds, at))?;
        }
        place.put(plane)?;
    }
    Ok(())
}

/// Lets packets of hook `at` run ahead of their rates if there is a queue behind it.
fn hold(start: &GuardStart, plane: &Plane, rounds: &mut Rounds, at: usize, queue: bool) {
    // A queue shared by flow classes is emptied at the rate of all of them: it stops TCP, which watches what of it waits, but
    // would let datagrams of one class pass by the rate of another.
    let alone = start.hooks[at].rules.is_empty();
    for leaf in leaves_of(start, at) {
        rounds.queued(leaf, queue && alone);
        let hold_ns = start.leaves[leaf].hold_ns;
        let ahead = |may: bool| if may { hold_ns } else { 0 };
        plane.hold(leaf, Hold { tcp_ns: ahead(queue), others_ns: ahead(rounds.waits(leaf)) });
    }
}

/// What the queue behind hook `at` lets pass.
fn paced(start: &GuardStart, rounds: &Rounds, at: usize) -> Pace {
    let sum = |of: &dyn Fn(usize) -> u64| leaves_of(start, at).map(of).sum();
    Pace { bps: sum(&|leaf| rounds.pace_bps(leaf)), strict: leaves_of(start, at).any(|leaf| rounds.holds_back(leaf)) }
}

/// Which places have a goal, whose queues are looked at in each round.
fn strict(start: &GuardStart) -> Vec<usize> {
    let has_goal = |leaf: usize| start.goals.iter().any(|goal| goal.leaves.contains(&leaf));
    (0..start.hooks.len()).filter(|&at| leaves_of(start, at).any(has_goal)).collect()
}

struct Daemon {
    start: GuardStart,
    plane: Plane,
    rounds: Rounds,
    places: Vec<Place>,
    links: Vec<Option<Link>>,
    strict: Vec<usize>,
    waits: Vec<Waits>,
    link_waits: Vec<Waits>,
    next_wait: usize,
    unmet: Vec<bool>,
    readings: Vec<Option<Reading>>,
    lost: Vec<bool>,
    reported: Vec<Counters>,
    reported_ns: Nanos,
    notes: Vec<GuardNote>,
    round_ns_max: Nanos,
    decide_ns_max: Nanos,
    looked: usize,
}

impl Daemon {
    fn new(start: GuardStart, plane: Plane, rounds: Rounds, places: Vec<Place>, links: Vec<Option<Link>>) -> Self {
        Self {
            strict: strict(&start),
            waits: vec![Waits::default(); places.len()],
            link_waits: vec![Waits::default(); links.len()],
            next_wait: 0,
            unmet: vec![false; start.goals.len()],
            readings: vec![None; places.len()],
            lost: vec![false; places.len()],
            reported: vec![Counters::default(); start.leaves.len()],
            reported_ns: clock::now(),
            notes: vec![],
            round_ns_max: 0,
            decide_ns_max: 0,
            looked: 0,
            start,
            plane,
            rounds,
            places,
            links,
        }
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
        self.decide_ns_max = self.decide_ns_max.max(self.rounds.run(&self.plane, now));
        self.plane.beat(now);
        self.round_ns_max = self.round_ns_max.max(clock::now() - now);
        self.measure_waits();
        self.follow_goals();
        self.tend_queues();
    }

    /// A queue costs every packet something, so it is there only where packets wait: it is put there when a vif comes to its
    /// limits, and goes when nothing was sent for a while.
    fn tend_queues(&mut self) {
        let patience = u32::try_from(IDLE_NS / self.start.period_ns).unwrap_or(u32::MAX).max(1);
        let mut put = 0;
        for at in 0..self.places.len() {
            if self.places[at].excess != GuardExcess::Held {
                continue;
            }
            let had = self.places[at].has_queue();
            let alone = self.start.hooks[at].rules.is_empty();
            let wanted = had || leaves_of(&self.start, at).any(|leaf| self.rounds.wants_queue(leaf, alone));
            if wanted && (had || put < PUT_AT_ONCE) {
                put += usize::from(!had);
                // Its rate is that of a queue which holds back, before the hook counts on it.
                self.rounds.queued(self.start.hooks[at].leaf, alone);
                // A queue that can't be changed shows at the next look, with what is wrong.
                let _ = self.places[at].pace(paced(&self.start, &self.rounds, at));
                let idle = leaves_of(&self.start, at).all(|leaf| self.rounds.is_idle(leaf));
                self.places[at].unqueue_if_idle(idle, patience);
                hold(&self.start, &self.plane, &mut self.rounds, at, self.places[at].has_queue());
            }
        }
    }

    fn measure_waits(&mut self) {
        let turns = (0..self.places.len().min(LOOKED_AT)).map(|step| (self.next_wait + step) % self.places.len());
        let places: Vec<usize> = turns.filter(|at| !self.strict.contains(at)).chain(self.strict.iter().copied()).collect();
        self.next_wait += LOOKED_AT;
        for at in places {
            if let Some(wait) = self.places[at].wait_ns() {
                self.waits[at].add(wait);
                let hook = &self.start.hooks[at];
                // What waits in a queue of several flow classes says nothing of one of them.
                if hook.rules.is_empty() {
                    self.plane.settle(hook.leaf, clock::now(), wait, self.start.leaves[hook.leaf].hold_ns);
                }
            }
        }
        for (link, waits) in self.links.iter_mut().zip(&mut self.link_waits) {
            if let Some(wait) = link.as_mut().and_then(|link| link.wait_ns(clock::now())) {
                waits.add(wait);
            }
        }
    }

    /// Takes from what is lent as long as a goal is missed, and tells when there is nothing left to take.
    fn follow_goals(&mut self) {
        for pool in 0..self.start.pools.len() {
            let goals: Vec<usize> = (0..self.start.goals.len()).filter(|&at| self.start.goals[at].pool == pool).collect();
            let strains: Vec<u64> = goals.iter().map(|&at| self.strain(&self.start.goals[at])).collect();
            let Some(&worst) = strains.iter().max() else { continue };
            let gave_up = self.rounds.strain(pool, worst);
            for (&at, &strain) in goals.iter().zip(&strains) {
                let unmet = gave_up && strain > Throttle::MET;
                if unmet && !self.unmet[at] {
                    self.notes.push(missed(&self.start.goals[at], self.wait_of(&self.start.goals[at])));
                }
                self.unmet[at] = unmet;
            }
        }
    }

    /// Measured over goal, in parts of [`Throttle::MET`], of whichever is missed most.
    fn strain(&self, goal: &GuardGoal) -> u64 {
        let wait = self.wait_of(goal);
        let over = |measured: Nanos, goal: Option<Nanos>| goal.map_or(0, |goal| measured.saturating_mul(Throttle::MET) / goal.max(1));
        over(wait.delay_ns, goal.delay_ns).max(over(wait.jitter_ns, goal.jitter_ns))
    }

    /// The longest wait of a goal's vifs, their own queue's and the link's.
    fn wait_of(&self, goal: &GuardGoal) -> Wait {
        let link = self.link_waits[goal.pool].running().unwrap_or_default();
        let places = (0..self.places.len()).filter(|&at| leaves_of(&self.start, at).any(|leaf| goal.leaves.contains(&leaf)));
        let own = places.filter_map(|at| self.waits[at].running());
        let most = own.fold(Wait::default(), |a, b| Wait { delay_ns: a.delay_ns.max(b.delay_ns), jitter_ns: a.jitter_ns.max(b.jitter_ns) });
        Wait { delay_ns: most.delay_ns + link.delay_ns, jitter_ns: most.jitter_ns + link.jitter_ns }
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
            self.note(at, kind, text);
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
            self.note(at, kind, text);
        }
    }

    fn note(&mut self, at: usize, kind: GuardFinding, text: String) {
        let about = self.start.leaves[self.start.hooks[at].leaf].name.clone();
        self.notes.push(GuardNote { about, kind, text });
    }

    fn allowed(&self, at: usize) -> Allowed {
        let leaves = || leaves_of(&self.start, at).map(|leaf| &self.start.leaves[leaf]);
        let held = |ns: Nanos, bps: u64| (u128::from(bps) * u128::from(ns) / 8_000_000_000) as u64;
        Allowed {
            ceiling_bps: leaves().map(|leaf| leaf.ceiling_bps).sum(),
            burst_bytes: leaves().map(|leaf| held(leaf.burst_ns + 2 * leaf.hold_ns, leaf.ceiling_bps)).sum(),
        }
    }

    fn report(&mut self) -> Report {
        let (from_ns, at_ns) = (self.reported_ns, clock::now());
        let links: Vec<Option<Wait>> = self.link_waits.iter_mut().map(Waits::take).collect();
        let own: Vec<Option<Wait>> = self.waits.iter_mut().map(Waits::take).collect();
        let mut rows: Vec<GuardRow> = (0..self.start.leaves.len()).map(|leaf| self.row(leaf, at_ns - from_ns)).collect();
        for (at, own) in own.into_iter().enumerate() {
            let seen = together(own, links[self.start.leaves[self.start.hooks[at].leaf].pool]);
            for leaf in leaves_of(&self.start, at) {
                (rows[leaf].delay_ns, rows[leaf].jitter_ns) = (seen.map(|wait| wait.delay_ns), seen.map(|wait| wait.jitter_ns));
            }
        }
        let pool = |(at, link): (usize, &Option<Wait>)| GuardPoolRow {
            divided_bps: self.rounds.divided_bps(at),
            delay_ns: link.map(|wait| wait.delay_ns),
        };
        let pools = links.iter().enumerate().map(pool).collect();
        self.reported_ns = at_ns;
        let (round_ns_max, decide_ns_max) = (std::mem::take(&mut self.round_ns_max), std::mem::take(&mut self.decide_ns_max));
        Report { from_ns, at_ns, rows, pools, notes: std::mem::take(&mut self.notes), round_ns_max, decide_ns_max }
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
            ..GuardRow::default()
        }
    }
}

/// Waits in two queues one after the other; one that was not looked at adds nothing that is known.
fn together(own: Option<Wait>, link: Option<Wait>) -> Option<Wait> {
    let (one, other) = (own.or(link)?, own.and(link).unwrap_or_default());
    Some(Wait { delay_ns: one.delay_ns + other.delay_ns, jitter_ns: one.jitter_ns + other.jitter_ns })
}

fn missed(goal: &GuardGoal, wait: Wait) -> GuardNote {
    let told = |what: &str, goal: Option<Nanos>, measured: Nanos| {
        let ms = |ns: Nanos| ns as f64 / 1e6;
        goal.map(|goal| format!("{what} is {:.2} ms, its goal {:.2} ms", ms(measured), ms(goal)))
    };
    let both = [told("delay", goal.delay_ns, wait.delay_ns), told("jitter", goal.jitter_ns, wait.jitter_ns)];
    let said: Vec<String> = both.into_iter().flatten().collect();
    let text = format!("{}, though nothing but guarantees is sent any more; lower these, or give a goal that can be had", said.join("; "));
    GuardNote { about: goal.name.clone(), kind: GuardFinding::Unmet, text }
}
