//! A running guard: the hooks, and three threads. One keeps the rates. One manages queues, checks interfaces and writes reports.
//! One listens for changes.
//!
//! The thread that keeps the rates only touches memory. A system call can take long, because a tenant that changes its own
//! interfaces holds the kernel's single lock for all of them. Rates and heartbeat must not wait for that lock.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use partywall_allocation::Throttle;
use partywall_bpf::{Change, Watch};
use partywall_clock::{self as clock, Nanos, SessionClock};
use partywall_wire::{
    GuardDirection, GuardExcess, GuardFinding, GuardGoal, GuardGrant, GuardHook, GuardMove, GuardNote, GuardPoolRow, GuardQueue,
    GuardRemove, GuardRow, GuardStart,
};

use crate::change::{Changes, Finding, Looks, Repeats, Rests};
use crate::check::{Account, Allowed, Count, Judgement, Reading, Unhooked, SLACK_BYTES};
use crate::delay::{Wait, Waits};
use crate::error::GuardError;
use crate::fallback::{FallbackProcess, HeldPlace, Instructions};
use crate::place::{self, Link, Look, Networks, Place, QueueRate, LARGEST};
use crate::plane::{Counters, Grant, Plane};
use crate::round::Rounds;
use crate::whereabouts::Where;

/// Maximum datagrams in one segmented packet (`UDP_MAX_SEGMENTS`). A hook counts all of them at once.
const SEGMENTS: u64 = 128;
const LEAVES_MAX: usize = 65_000;
/// The longest time of a policy: an hour.
const TIME_MOST: Nanos = 3_600_000_000_000;
/// The highest rate of a policy, in bit/s or packets/s. The sum of one for each leaf fits in 64 bits.
const RATE_MOST: u64 = 200_000_000_000_000;
/// Queues of vifs checked per round. Thousands take turns; vifs with a goal are checked in every round.
const LOOKED_AT: usize = 32;
/// Queues changed per round, because each change is a system call.
const PUT_AT_ONCE: usize = 16;
/// Places checked because of changes before the thread looks for other due work.
const FOLLOWED_AT_ONCE: usize = 16;
/// Pause of the listener after an error of the kernel.
const LISTENER_FAILED_RESTS_NS: Nanos = 1_000_000_000;
/// Maximum time for which a new interface pays for what it sent before it was hooked. One that was in use elsewhere may have sent much.
const OWED_NS_MAX: Nanos = 1_000_000_000;
/// A queue is removed after this time without packets.
const IDLE_NS: Nanos = 10_000_000_000;

/// Events and counts since the last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Start of the reported period.
    pub from_ns: Nanos,
    /// End of the reported period.
    pub at_ns: Nanos,
    /// One row per leaf.
    pub rows: Vec<GuardRow>,
    /// One row per pool.
    pub pools: Vec<GuardPoolRow>,
    /// Findings of the independent check.
    pub notes: Vec<GuardNote>,
    /// Longest time to read, decide and write.
    pub round_ns_max: Nanos,
    /// Longest time to decide.
    pub decide_ns_max: Nanos,
}

/// A running guard. When it is dropped, it stops deciding, as if it had died: hooks and rates stay, unless it is transient.
pub struct Guard {
    start: GuardStart,
    session: SessionClock,
    shared: Arc<Shared>,
    core: Arc<Core>,
    excess: Vec<GuardExcess>,
    without_backstop: Vec<usize>,
    queue: GuardQueue,
    watch: Arc<Watch>,
    fallback_process: Arc<Mutex<FallbackProcess>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    reports: Vec<Report>,
    changes: Changes,
    moves: Vec<GuardMove>,
    adjustment: Adjustment,
    /// Number of rounds so far.
    rounds: u64,
    ended: bool,
    /// The thread that panicked.
    died: Option<&'static str>,
}

/// A policy that replaces the current one.
#[derive(Default)]
enum Adjustment {
    #[default]
    None,
    Wanted(Box<GuardStart>),
    /// It holds since this time.
    Made(Nanos),
}

impl Adjustment {
    fn is_wanted(&self) -> bool {
        matches!(self, Self::Wanted(_))
    }
}

/// Work that is due.
struct Woken {
    adjustment: Option<Box<GuardStart>>,
    changes: Vec<Change>,
    moves: Vec<GuardMove>,
    rounds: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    /// Waits until `at_ns`. False if the guard ended first.
    fn sleep_until(&self, at_ns: Nanos) -> bool {
        let left = Duration::from_nanos(at_ns.saturating_sub(clock::monotonic()));
        let waited = self.changed.wait_timeout_while(self.state(), left, |state| !state.ended);
        !waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Waits until `at_ns`, or until an earlier event: also a round beyond `seen`. None if the guard ended.
    fn wait(&self, at_ns: Option<Nanos>, seen: u64) -> Option<Woken> {
        let left = at_ns.map_or(Duration::MAX, |at_ns| Duration::from_nanos(at_ns.saturating_sub(clock::monotonic())));
        let is_quiet = |state: &mut State| {
            !state.ended && state.rounds == seen && state.changes.is_empty() && state.moves.is_empty() && !state.adjustment.is_wanted()
        };
        let waited = self.changed.wait_timeout_while(self.state(), left, is_quiet);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (changes, moves) = (state.changes.take().collect(), std::mem::take(&mut state.moves));
        let adjustment = match std::mem::take(&mut state.adjustment) {
            Adjustment::Wanted(start) => Some(start),
            other => {
                state.adjustment = other;
                None
            }
        };
        (!state.ended).then_some(Woken { adjustment, changes, moves, rounds: state.rounds })
    }

    /// Waits until the thread that tends the hooks has replaced the policy. None if the guard ended first.
    fn adjusted(&self, start: GuardStart) -> Option<Nanos> {
        self.state().adjustment = Adjustment::Wanted(Box::new(start));
        self.changed.notify_all();
        let open = |state: &mut State| !state.ended && !matches!(state.adjustment, Adjustment::Made(_));
        let mut state = self.changed.wait_while(self.state(), open).unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut state.adjustment) {
            Adjustment::Made(at_ns) => Some(at_ns),
            _ => None,
        }
    }
}

/// Ends the guard with any of its threads, also on a panic: without rounds nothing is decided, and without checks the heartbeat must
/// stop too.
struct Ends<'a> {
    shared: &'a Shared,
    watch: &'a Watch,
    thread: &'static str,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.state().died.get_or_insert(self.thread);
        }
        self.shared.end();
        self.watch.end();
    }
}

/// Forwards interface changes, so that a recreated interface is hooked before the next check.
fn listen(watch: &Watch, shared: &Shared) {
    let mut rests = Rests::default();
    loop {
        let rests_ns = match watch.wait() {
            Ok(None) => return,
            Ok(Some(changes)) if changes.is_empty() => continue,
            Ok(Some(changes)) => {
                let mut state = shared.state();
                for change in changes {
                    state.changes.add(change);
                }
                rests.after_batch_ns(clock::monotonic())
            }
            // Until it succeeds again, the check every `check_ns` still finds all changes.
            Err(_) => LISTENER_FAILED_RESTS_NS,
        };
        shared.changed.notify_all();
        if rests_ns > 0 && !shared.sleep_until(clock::monotonic() + rests_ns) {
            return;
        }
    }
}

impl Guard {
    /// Hooks the data plane to every place and starts the threads. If one place fails, this start leaves nothing at the others. Reports
    /// get times of `session`; everything else here is in the kernel's time, which is the machine's.
    ///
    /// # Errors
    /// A number without its object, a missing interface, or an error of the kernel. Each error names the thing.
    pub fn start(start: &GuardStart, session: &SessionClock) -> Result<Self, GuardError> {
        checked(start)?;
        let mut networks = Networks::default();
        let queue = place::queue(start.queue)?;
        let mut places = places(start, queue, &mut networks)?;
        let links = links(start, &mut networks)?;
        let plane = load(start)?;
        let mut rounds = Rounds::new(start, queue, clock::monotonic());
        prepare(start, &plane, &mut rounds, &places)?;
        let (spaces, namespaces) = networks.namespaces();
        let watch = Arc::new(Watch::new(&namespaces).map_err(GuardError::kernel("listening for interfaces"))?);
        let fallback_process = Arc::new(Mutex::new(FallbackProcess::start()?));
        put_all(start, &plane, &rounds, &mut places)?;
        let excess = places.iter().map(|place| place.excess).collect();
        let without_backstop = (0..places.len()).filter(|&at| places[at].lacks_backstop()).collect();
        let shared = Arc::<Shared>::default();
        let core = Arc::new(Core::new(start.clone(), plane, rounds, &places));
        let mut tender = Tender::new(start.clone(), session, core.clone(), places, links);
        (tender.networks, tender.spaces, tender.watch) = (networks, spaces, Some(watch.clone()));
        tender.fallback_process = fallback_process.clone();
        tender.instruct_fallback_process();
        let mut guard = Self {
            start: start.clone(),
            session: session.clone(),
            shared,
            core: core.clone(),
            excess,
            without_backstop,
            queue,
            watch,
            fallback_process,
            threads: Vec::new(),
        };
        guard.run(core, tender)?;
        Ok(guard)
    }

    fn run(&mut self, core: Arc<Core>, mut tender: Tender) -> Result<(), GuardError> {
        let watch = self.watch.clone();
        self.spawn("guard", move |shared| core.run(shared))?;
        self.spawn("guard-tend", move |shared| {
            tender.run(shared);
            tender.end();
        })?;
        self.spawn("guard-watch", move |shared| listen(&watch, shared))
    }

    fn spawn(&mut self, name: &'static str, body: impl FnOnce(&Shared) + Send + 'static) -> Result<(), GuardError> {
        let (shared, watch) = (self.shared.clone(), self.watch.clone());
        let body = move || {
            let _ends = Ends { shared: &shared, watch: &watch, thread: name };
            body(&shared);
        };
        self.threads.push(thread::Builder::new().name(name.into()).spawn(body).map_err(GuardError::kernel("a thread"))?);
        Ok(())
    }

    /// Why it ended on its own, if it did. All its threads have ended then.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        let thread = self.shared.state().died.filter(|_| self.threads.iter().all(JoinHandle::is_finished))?;
        Some(format!("its thread {thread} panicked, which is a bug; hooks and rates stay as after its death"))
    }

    /// Hooks that lack their backstop.
    #[must_use]
    pub fn without_backstop(&self) -> &[usize] {
        &self.without_backstop
    }

    /// The kind of queue that holds packets back.
    #[must_use]
    pub fn queue(&self) -> GuardQueue {
        self.queue
    }

    /// The rates of each leaf now.
    #[must_use]
    pub fn grants(&self) -> Vec<GuardGrant> {
        self.core.kept().rounds.grants().iter().map(|grant| GuardGrant { bps: grant.bps, pps: grant.pps }).collect()
    }

    /// How each hook treats excess packets.
    #[must_use]
    pub fn excess(&self) -> &[GuardExcess] {
        &self.excess
    }

    /// Moves hooks to other places. The notes of later reports say whether each hook is in place or lost.
    ///
    /// # Errors
    /// A hook that is not in the list.
    pub fn relocate(&self, moves: Vec<GuardMove>) -> Result<(), GuardError> {
        if let Some(unknown) = moves.iter().find(|to| to.hook >= self.excess.len()) {
            return Err(GuardError::usage(format_args!("no hook {}; there are {}", unknown.hook, self.excess.len())));
        }
        self.shared.state().moves.extend(moves);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Replaces the policy. Promises, priorities, totals, goals and the capacities may differ; vifs, flow classes and what belongs to
    /// them may not. Hooks stay attached, and no packet passes without a rate. Places in `to` are ignored: vifs stay where they are.
    /// Returns the time from which the new policy holds.
    ///
    /// # Errors
    /// A policy that `start` would refuse, or one with other vifs or flow classes. The current policy then stays.
    pub fn adjust(&mut self, to: &GuardStart) -> Result<Nanos, GuardError> {
        checked(to)?;
        alike(&self.start, to)?;
        let at_ns = self.shared.adjusted(to.clone()).ok_or_else(|| GuardError::new("the guard has ended"))?;
        self.start = to.clone();
        Ok(self.session.at(at_ns))
    }

    /// Ends the fallback process, because the hooks of this guard are about to be removed.
    pub fn end_fallback_process(&self) {
        self.fallback_process.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }

    /// The reports since the last call.
    #[must_use]
    pub fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut self.shared.state().reports)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.end();
        self.watch.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if self.start.transient {
            // The tender has removed the hooks where they are, unless it has panicked.
            self.fallback_process.lock().unwrap_or_else(PoisonError::into_inner).kill();
            let _ = place::remove(&GuardRemove { id: Some(self.start.id.clone()), hooks: self.start.hooks.clone() });
        }
    }
}

/// Checks that all numbers of a flattened policy refer to existing objects.
fn checked(start: &GuardStart) -> Result<(), GuardError> {
    let numbered = start.leaves.len() + start.hooks.len();
    if numbered > LEAVES_MAX {
        return Err(GuardError::usage(format_args!("{numbered} leaves and hooks; one guard keeps {LEAVES_MAX}")));
    }
    let pools = start.leaves.iter().all(|leaf| leaf.pool < start.pools.len());
    let pools = pools && start.goals.iter().all(|goal| goal.pool < start.pools.len());
    let totals = start.leaves.iter().all(|leaf| leaf.totals.iter().all(|&total| total < start.totals.len()));
    let used = start.hooks.iter().flat_map(|hook| hook.rules.iter().map(|rule| rule.leaf).chain([hook.leaf]));
    let leaves = used.chain(start.goals.iter().flat_map(|goal| goal.leaves.iter().copied())).all(|leaf| leaf < start.leaves.len());
    in_range(start)?;
    let periods = start.period_ns >= 1_000_000 && start.report_ns >= start.period_ns && start.check_ns >= start.period_ns;
    match (pools && totals && leaves, periods) {
        (false, _) => Err(GuardError::usage("a leaf, hook or rule names a pool, total or leaf that is not in the lists")),
        (_, false) => Err(GuardError::usage("period_ns is below 1 ms, or report_ns or check_ns below period_ns")),
        _ => Ok(()),
    }
}

/// Checks that no time or rate is so large that sums and products of them leave 64 bits.
fn in_range(start: &GuardStart) -> Result<(), GuardError> {
    let time = |what: &'static str, ns: u64| (what, Some(ns), TIME_MOST);
    let mut figures = vec![time("period_ns", start.period_ns), time("report_ns", start.report_ns), time("check_ns", start.check_ns)];
    figures.push(("fallback_after_ns", start.fallback_after_ns, TIME_MOST));
    for pool in &start.pools {
        figures.extend([("capacity_bps", Some(pool.capacity_bps), RATE_MOST), ("capacity_pps", pool.capacity_pps, RATE_MOST)]);
    }
    for total in &start.totals {
        figures.extend([("ceiling_bps", total.ceiling_bps, RATE_MOST), ("ceiling_pps", total.ceiling_pps, RATE_MOST)]);
    }
    for leaf in &start.leaves {
        figures.extend([time("burst_ns", leaf.burst_ns), time("hold_ns", leaf.hold_ns)]);
        figures.extend([("guarantee_bps", Some(leaf.guarantee_bps), RATE_MOST), ("ceiling_bps", Some(leaf.ceiling_bps), RATE_MOST)]);
        figures.extend([("guarantee_pps", Some(leaf.guarantee_pps), RATE_MOST), ("ceiling_pps", leaf.ceiling_pps, RATE_MOST)]);
    }
    for goal in &start.goals {
        figures.extend([("delay_ns", goal.delay_ns, TIME_MOST), ("jitter_ns", goal.jitter_ns, TIME_MOST)]);
    }
    let large = figures.into_iter().find_map(|(what, value, most)| Some((what, value.filter(|&value| value > most)?, most)));
    match large {
        Some((what, value, most)) => Err(GuardError::usage(format_args!("{what} is {value}; give at most {most}"))),
        None => Ok(()),
    }
}

/// Checks that a policy has the same vifs and flow classes as the running one.
fn alike(now: &GuardStart, to: &GuardStart) -> Result<(), GuardError> {
    let refused = |what: String| Err(GuardError::usage(format_args!("{what}; start the guard again to change that")));
    if now.id != to.id {
        return refused(format!("the policy is called {:?}, the running one {:?}", to.id, now.id));
    }
    let names = |start: &GuardStart| start.leaves.iter().map(|leaf| (leaf.name.clone(), leaf.pool)).collect::<Vec<_>>();
    let (here, there) = (names(now), names(to));
    if let Some((name, _)) = there.iter().find(|leaf| !here.contains(leaf)) {
        return refused(format!("{name:?} is not in the running policy"));
    }
    if let Some((name, _)) = here.iter().find(|leaf| !there.contains(leaf)) {
        return refused(format!("{name:?} is in the running policy only"));
    }
    if here != there || now.hooks.len() != to.hooks.len() {
        return refused("the vifs are in another order".into());
    }
    let place = |hook: &GuardHook| GuardHook { namespace: None, interface: String::new(), ..hook.clone() };
    if let Some((hook, _)) = now.hooks.iter().zip(&to.hooks).find(|(now, to)| place(now) != place(to)) {
        return refused(format!("{:?} has another side, excess or flow classes", now.leaves[hook.leaf].name));
    }
    let links = |start: &GuardStart| start.pools.iter().map(|pool| (pool.name.clone(), pool.link.clone())).collect::<Vec<_>>();
    if links(now) != links(to) {
        return refused("the link is another interface".into());
    }
    if now.queue != to.queue {
        return refused("the kind of queue differs".into());
    }
    Ok(())
}

fn load(start: &GuardStart) -> Result<Plane, GuardError> {
    Plane::load(start.leaves.len() + start.hooks.len(), start.hooks.iter().filter(|hook| !hook.rules.is_empty()).count())
}

fn places(start: &GuardStart, queue: GuardQueue, networks: &mut Networks) -> Result<Vec<Place>, GuardError> {
    let find = |(at, hook): (usize, &GuardHook)| {
        Place::find(networks, &start.id, queue, hook, &start.leaves[hook.leaf], backstop_of(start, at), None)
    };
    start.hooks.iter().enumerate().map(find).collect()
}

fn links(start: &GuardStart, networks: &mut Networks) -> Result<Vec<Option<Link>>, GuardError> {
    let find = |pool: &partywall_wire::GuardPool| pool.link.as_ref().map(|link| Link::find(networks, link, pool.capacity_bps)).transpose();
    start.pools.iter().map(find).collect()
}

/// Writes all settings to memory before the first packet arrives.
fn prepare(start: &GuardStart, plane: &Plane, rounds: &mut Rounds, places: &[Place]) -> Result<(), GuardError> {
    for (leaf, grant) in rounds.grants().iter().enumerate() {
        plane.grant(leaf, clock::monotonic(), *grant);
        plane.fall_back_to(leaf, rounds.fallback(leaf));
    }
    for (at, place) in places.iter().enumerate() {
        plane.rules(start.hooks[at].leaf, &start.hooks[at].rules)?;
        let (leaf, most) = (backstop_of(start, at), backstop_at_ceiling(start, at));
        plane.grant(leaf, clock::monotonic(), most);
        plane.fall_back_to(leaf, most);
        if place.has_queue() {
            hold(start, plane, rounds, at, true);
        }
    }
    if rounds.queue() == GuardQueue::Fq {
        plane.give_departures();
    }
    plane.beat(clock::monotonic());
    plane.stale_after(start.fallback_after_ns.unwrap_or(0));
    Ok(())
}

fn leaves_of(start: &GuardStart, hook: usize) -> impl Iterator<Item = usize> + '_ {
    let hook = &start.hooks[hook];
    std::iter::once(hook.leaf).chain(hook.rules.iter().map(|rule| rule.leaf))
}

/// The leaf of a hook's backstop. These leaves follow all others.
fn backstop_of(start: &GuardStart, hook: usize) -> usize {
    start.leaves.len() + hook
}

/// Joint ceiling of a hook's leaves: the sum of their ceilings, or a total that contains all of them.
fn ceiling_bps(start: &GuardStart, hook: usize) -> u64 {
    let sum: u64 = leaves_of(start, hook).map(|leaf| start.leaves[leaf].ceiling_bps).sum();
    shared_totals(start, hook).filter_map(|total| start.totals[total].ceiling_bps).fold(sum, u64::min)
}

fn ceiling_pps(start: &GuardStart, hook: usize) -> Option<u64> {
    let sum: Option<u64> = leaves_of(start, hook).map(|leaf| start.leaves[leaf].ceiling_pps).sum();
    shared_totals(start, hook).filter_map(|total| start.totals[total].ceiling_pps).chain(sum).min()
}

/// Totals that contain every leaf of a hook.
fn shared_totals(start: &GuardStart, hook: usize) -> impl Iterator<Item = usize> + '_ {
    let all = move |total: &usize| leaves_of(start, hook).all(|leaf| start.leaves[leaf].totals.contains(total));
    start.leaves[start.hooks[hook].leaf].totals.iter().copied().filter(all)
}

/// A burst large enough for all packets that the hook itself passes, through a queue whose rate changes.
fn backstop_burst_ns(start: &GuardStart, hook: usize, bps: u64) -> Nanos {
    let leaf = &start.leaves[start.hooks[hook].leaf];
    (2 * (leaf.burst_ns + leaf.hold_ns)).max((u128::from(2 * LARGEST) * 8_000_000_000 / u128::from(bps.max(1))) as Nanos)
}

fn backstop_at_ceiling(start: &GuardStart, hook: usize) -> Grant {
    let bps = ceiling_bps(start, hook);
    let burst_ns = backstop_burst_ns(start, hook, bps);
    Grant { bps, pps: ceiling_pps(start, hook), burst_ns, packet_burst_ns: burst_ns }
}

fn backstop_of_all(start: &GuardStart, at: usize, of: &dyn Fn(usize) -> Grant) -> Grant {
    let grants = || leaves_of(start, at).map(of);
    let bps = grants().map(|grant| grant.bps).sum();
    let burst_ns = backstop_burst_ns(start, at, bps);
    Grant { bps, pps: grants().map(|grant| grant.pps).sum(), burst_ns, packet_burst_ns: burst_ns }
}

/// Replaces the hooks of an earlier guard, with their guarantees. At places without earlier hooks, a failure leaves nothing.
fn put_all(start: &GuardStart, plane: &Plane, rounds: &Rounds, places: &mut [Place]) -> Result<(), GuardError> {
    let taken = places.iter().map(Place::is_taken).collect::<Result<Vec<_>, _>>()?;
    for at in 0..places.len() {
        let pace = paced(start, rounds, at);
        if let Err(error) = put(&mut places[at], plane, pace) {
            for at in (0..=at).filter(|&at| !taken[at]) {
                places[at].take_away();
            }
            return Err(error);
        }
    }
    Ok(())
}

fn put(at: &mut Place, plane: &Plane, pace: QueueRate) -> Result<(), GuardError> {
    if at.has_queue() {
        at.pace(pace, Some(plane))?;
    }
    at.put(plane)
}

/// Lets packets of hook `at` run ahead of their rates if there is a queue behind it.
fn hold(start: &GuardStart, plane: &Plane, rounds: &mut Rounds, at: usize, queue: bool) {
    let apart = holds_apart(start, rounds, at);
    for leaf in leaves_of(start, at) {
        rounds.queued(leaf, queue && apart);
        let [granted, fallback] = if queue { rounds.ahead(leaf) } else { Default::default() };
        plane.hold(leaf, granted, fallback);
    }
}

/// Whether the queue behind hook `at` holds back each leaf separately. A rate queue shared by flow classes drains at their joint
/// rate. It holds back TCP, which watches its own waiting bytes. But datagrams of one class could pass at the rate of another.
fn holds_apart(start: &GuardStart, rounds: &Rounds, at: usize) -> bool {
    rounds.queue() == GuardQueue::Fq || start.hooks[at].rules.is_empty()
}

/// The settings of the queue behind hook `at`.
fn paced(start: &GuardStart, rounds: &Rounds, at: usize) -> QueueRate {
    let sum = |of: &dyn Fn(usize) -> u64| leaves_of(start, at).map(of).sum();
    let any = |of: &dyn Fn(usize) -> bool| leaves_of(start, at).any(of);
    QueueRate {
        bps: sum(&|leaf| rounds.pace_bps(leaf)),
        strict: any(&|leaf| rounds.holds_back(leaf)),
        tcp: any(&|leaf| rounds.speaks_tcp(leaf)),
    }
}

fn goals(start: &GuardStart) -> Vec<Goal> {
    let goal_of = |goal: &GuardGoal| {
        let leaves: HashSet<usize> = goal.leaves.iter().copied().collect();
        let places = (0..start.hooks.len()).filter(|&at| leaves_of(start, at).any(|leaf| leaves.contains(&leaf))).collect();
        Goal { places, unmet: false, missed_alone: 0 }
    };
    start.goals.iter().map(goal_of).collect()
}

/// State shared by the thread that keeps the rates and the thread that manages the rest.
struct Core {
    plane: Plane,
    kept: Mutex<Kept>,
}

struct Kept {
    start: Arc<GuardStart>,
    rounds: Rounds,
    /// Per hook, whether there is a queue behind it.
    queued: Vec<bool>,
    /// Hooks that traffic bypassed. Their backstop permits no more than is granted.
    went_round: Vec<usize>,
    round_ns_max: Nanos,
    decide_ns_max: Nanos,
}

impl Core {
    fn new(start: GuardStart, plane: Plane, rounds: Rounds, places: &[Place]) -> Self {
        let queued = places.iter().map(Place::has_queue).collect();
        let start = Arc::new(start);
        Self { plane, kept: Mutex::new(Kept { start, rounds, queued, went_round: vec![], round_ns_max: 0, decide_ns_max: 0 }) }
    }

    /// Replaces the policy between two rounds. Returns the time from which it holds.
    fn adjust(&self, start: &GuardStart) -> Nanos {
        let now = clock::monotonic();
        let mut kept = self.kept();
        kept.start = Arc::new(start.clone());
        kept.rounds.adjust(start, &self.plane, now);
        for at in 0..start.hooks.len() {
            if kept.queued[at] {
                hold(start, &self.plane, &mut kept.rounds, at, true);
            }
            self.back_up(&kept, at, now);
        }
        self.plane.stale_after(start.fallback_after_ns.unwrap_or(0));
        now
    }

    /// Limits the backstop of hook `at` to the vif's ceilings, or to what is granted if traffic bypassed the hook.
    fn back_up(&self, kept: &Kept, at: usize, now: Nanos) {
        let start = &kept.start;
        let most = backstop_at_ceiling(start, at);
        let (granted, fallback) = if kept.went_round.contains(&at) {
            let of = |grant: &dyn Fn(usize) -> Grant| backstop_of_all(start, at, grant);
            (of(&|leaf| kept.rounds.grants()[leaf]), of(&|leaf| kept.rounds.fallback(leaf)))
        } else {
            (most, most)
        };
        let leaf = backstop_of(start, at);
        self.plane.grant(leaf, now, granted);
        self.plane.fall_back_to(leaf, fallback);
    }

    /// Never held during a system call, because rounds would wait for it.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, shared: &Shared) {
        let (mut next, mut again) = (clock::monotonic(), false);
        loop {
            // Changes within a period were only partly visible. One early extra round is permitted, but not two in a row.
            let kept = self.kept();
            again = kept.rounds.look_again() && !again;
            let wait_ns = if again { kept.start.period_ns / 2 } else { kept.start.period_ns };
            drop(kept);
            // A late round is not caught up: a very short period says nothing about a rate.
            next = (next + wait_ns).max(clock::monotonic() + wait_ns / 2);
            if !shared.sleep_until(next) {
                return;
            }
            self.round();
            shared.state().rounds += 1;
            shared.changed.notify_all();
        }
    }

    fn round(&self) {
        let now = clock::monotonic();
        let mut kept = self.kept();
        let decide_ns = kept.rounds.run(&self.plane, now);
        self.plane.beat(now);
        for at in (0..kept.queued.len()).filter(|&at| kept.queued[at]).collect::<Vec<_>>() {
            hold(&kept.start.clone(), &self.plane, &mut kept.rounds, at, true);
        }
        for &at in &kept.went_round {
            self.back_up(&kept, at, now);
        }
        kept.decide_ns_max = kept.decide_ns_max.max(decide_ns);
        kept.round_ns_max = kept.round_ns_max.max(clock::monotonic() - now);
    }

    /// Limits the backstop of hook `at` to what is granted.
    fn tighten(&self, at: usize) {
        let mut kept = self.kept();
        if !kept.went_round.contains(&at) {
            kept.went_round.push(at);
            // Also limits it to what the hook itself falls back to when the heartbeat stops.
            self.back_up(&kept, at, clock::monotonic());
        }
    }

    /// Undoes [`Core::tighten`].
    fn widen(&self, at: usize) {
        let mut kept = self.kept();
        if let Some(member) = kept.went_round.iter().position(|&went| went == at) {
            kept.went_round.swap_remove(member);
            self.back_up(&kept, at, clock::monotonic());
        }
    }
}

/// One hook, and the state of its vif.
struct Vif {
    place: Place,
    waits: Waits,
    account: Option<Account>,
    /// Of the packets that reach the other end of a veth, wherever its tenant's end is.
    behind: Option<Account>,
    /// Bytes that were found there since the last check.
    behind_bytes: u64,
    /// Of the direction without a hook.
    unhooked: Option<Unhooked>,
    has_both_ways: bool,
    is_lost: bool,
    /// Until when it pays for what passed before it was hooked. Its queue does not show that debt.
    owes_until_ns: Nanos,
    /// Another interface with its name that was reported.
    decoy: Option<u32>,
    /// Reports in succession in which its packets waited for too long.
    waited: u32,
    /// It has a goal, so its queue is checked in each turn.
    is_strict: bool,
}

/// A goal, and whether it is missed.
struct Goal {
    places: Vec<usize>,
    unmet: bool,
    /// Consecutive turns in which the goal was missed because of its own vifs' queues. Other vifs cannot improve that.
    missed_alone: u32,
}

/// The interface that all vifs of a pool leave by.
struct Uplink {
    link: Option<Link>,
    waits: Waits,
}

/// Everything that calls the kernel: queues and their waits, checks of the interfaces, and the reports.
struct Tender {
    start: GuardStart,
    session: SessionClock,
    core: Arc<Core>,
    /// Per hook.
    vifs: Vec<Vif>,
    goals: Vec<Goal>,
    /// Per pool.
    uplinks: Vec<Uplink>,
    networks: Networks,
    /// Files of the namespaces that are watched for changes.
    spaces: Vec<Option<String>>,
    watch: Option<Arc<Watch>>,
    fallback_process: Arc<Mutex<FallbackProcess>>,
    next_wait: usize,
    /// Per leaf.
    reported: Vec<Counters>,
    reported_ns: Nanos,
    notes: Vec<GuardNote>,
    repeats: Repeats,
    looks: Looks,
    looked: usize,
    turns: usize,
    /// Interfaces were created again since the fallback process was last told where the hooks are.
    has_new_places: bool,
}

impl Tender {
    fn new(start: GuardStart, session: &SessionClock, core: Arc<Core>, places: Vec<Place>, links: Vec<Option<Link>>) -> Self {
        let goals = goals(&start);
        let strict: HashSet<usize> = goals.iter().flat_map(|goal| goal.places.iter().copied()).collect();
        let both = both_ways(&start);
        let vif = |(at, place): (usize, Place)| Vif {
            place,
            waits: Waits::default(),
            account: None,
            behind: None,
            behind_bytes: 0,
            unhooked: None,
            has_both_ways: both[at],
            is_lost: false,
            owes_until_ns: 0,
            decoy: None,
            waited: 0,
            is_strict: strict.contains(&at),
        };
        let mut tender = Self {
            looks: Looks::new(places.len()),
            vifs: places.into_iter().enumerate().map(vif).collect(),
            uplinks: links.into_iter().map(|link| Uplink { link, waits: Waits::default() }).collect(),
            goals,
            networks: Networks::default(),
            spaces: vec![],
            watch: None,
            fallback_process: Arc::default(),
            next_wait: 0,
            reported: vec![Counters::default(); start.leaves.len()],
            reported_ns: clock::monotonic(),
            notes: vec![],
            repeats: Repeats::default(),
            looked: 0,
            turns: 0,
            has_new_places: false,
            start,
            session: session.clone(),
            core,
        };
        // Readings must exist from the start, or the first second could not be judged.
        for at in 0..tender.vifs.len() {
            tender.compare(at);
        }
        tender
    }

    fn run(&mut self, shared: &Shared) {
        let mut seen = 0;
        while let Some(Woken { adjustment, changes, moves, rounds }) = shared.wait(self.looks.due_ns(), seen) {
            if let Some(start) = adjustment {
                let (report, at_ns) = self.adjust(*start);
                let mut state = shared.state();
                state.reports.extend(report);
                state.adjustment = Adjustment::Made(at_ns);
                drop(state);
                shared.changed.notify_all();
            }
            for to in &moves {
                self.relocate(to);
            }
            for change in &changes {
                self.follow(change);
            }
            if rounds != seen {
                // Missed turns are not caught up.
                seen = rounds;
                self.turn();
                if clock::monotonic() >= self.reported_ns + self.start.report_ns {
                    self.keep_fallback_process();
                    let report = self.report();
                    shared.state().reports.push(report);
                }
            }
            self.look_where_something_changed();
        }
    }

    /// The work of one turn, after each round.
    fn turn(&mut self) {
        (0..self.vifs.len()).for_each(|at| self.watch_other_end(at));
        // A wait is that of the waiting bytes at the rate of now.
        self.tend_queues();
        self.measure_waits();
        self.follow_goals();
        if std::mem::take(&mut self.has_new_places) {
            self.instruct_fallback_process();
        }
        self.turns += 1;
        self.look_at_some(self.turns);
        for (at, kind, text) in self.repeats.due(clock::monotonic()) {
            self.report_finding(at, kind, text);
        }
    }

    /// Checks a few places per call, so that a due turn need not wait for more.
    fn look_where_something_changed(&mut self) {
        for _ in 0..FOLLOWED_AT_ONCE {
            let Some(at) = self.looks.next(clock::monotonic()) else { return };
            self.look(at);
        }
    }

    /// The end of a transient guard, which leaves nothing at the places that it can reach.
    fn end(&mut self) {
        if self.start.transient {
            self.fallback_process.lock().unwrap_or_else(PoisonError::into_inner).kill();
            self.vifs.iter_mut().for_each(|vif| vif.place.clear(&self.core.plane));
        }
    }

    /// Starts the fallback process again if it has ended. Otherwise nobody would notice until it is needed.
    fn keep_fallback_process(&mut self) {
        let mut process = self.fallback_process.lock().unwrap_or_else(PoisonError::into_inner);
        if !process.has_ended() {
            return;
        }
        let started = FallbackProcess::start().map(|again| *process = again);
        drop(process);
        let (kind, text) = match started {
            Ok(()) => (GuardFinding::Repaired, "the fallback process had ended, and was started again".into()),
            Err(error) => (GuardFinding::Lost, format!("the fallback process has ended, and cannot be started again: {error}")),
        };
        self.notes.push(GuardNote { about: self.start.id.clone(), kind, text });
        self.instruct_fallback_process();
    }

    /// Sends the fallback process its current instructions.
    fn instruct_fallback_process(&mut self) {
        let held = (0..self.vifs.len()).filter(|&at| self.vifs[at].place.excess != GuardExcess::Dropped);
        let hook = |at: usize| {
            let place = &self.vifs[at].place;
            GuardHook { namespace: place.space.clone(), interface: place.called.clone(), ..self.start.hooks[at].clone() }
        };
        let held_place = |at: usize| HeldPlace {
            hook: hook(at),
            index: self.vifs[at].place.index(),
            leaf: self.start.leaves[self.start.hooks[at].leaf].clone(),
            leaves: leaves_of(&self.start, at).collect(),
            tcp_packets: self.core.kept().rounds.tcp_packets(self.start.hooks[at].leaf),
        };
        // The lock must not be held while `held_place` takes it.
        let queue = self.core.kept().rounds.queue();
        let instructions = Instructions {
            policy: self.start.id.clone(),
            queue,
            plane: self.core.plane.handle(),
            falls_back: self.start.fallback_after_ns.is_some(),
            places: held.map(held_place).collect(),
        };
        self.fallback_process.lock().unwrap_or_else(PoisonError::into_inner).send(&instructions);
    }

    /// Replaces the policy. Returns a report of the time before, unless that was very short, and the time from which the policy holds.
    fn adjust(&mut self, start: GuardStart) -> (Option<Report>, Nanos) {
        // Traffic so far is judged by the old ceilings.
        (0..self.vifs.len()).for_each(|at| self.compare(at));
        let report = (clock::monotonic() >= self.reported_ns + self.start.period_ns).then(|| self.report());
        let at_ns = self.core.adjust(&start);
        self.goals = goals(&start);
        let strict: HashSet<usize> = self.goals.iter().flat_map(|goal| goal.places.iter().copied()).collect();
        for (at, vif) in self.vifs.iter_mut().enumerate() {
            vif.is_strict = strict.contains(&at);
            vif.place.adjust(&start.leaves[start.hooks[at].leaf]);
            (vif.account, vif.behind) = (None, None);
        }
        self.start = start;
        // Checks are spread over `check_ns`, whose rounds may have another length now.
        (self.looked, self.turns) = (0, 0);
        self.tend_queues();
        self.instruct_fallback_process();
        (0..self.vifs.len()).for_each(|at| self.compare(at));
        (report, at_ns)
    }

    fn relocate(&mut self, to: &GuardMove) {
        let left = self.vifs[to.hook].place.space.clone();
        self.vifs[to.hook].place.move_to(to, &self.core.plane);
        // No traffic has bypassed the hook at the new place yet.
        self.core.widen(to.hook);
        self.repeats.forget(to.hook);
        self.watch_instead(left.as_deref(), to.hook);
        // A hook that was already lost is not reported again if it is missing at the new place too.
        self.look(to.hook);
    }

    /// Watches the namespace of place `at` instead of a namespace that no longer has a place.
    fn watch_instead(&mut self, left: Option<&str>, at: usize) {
        let space = self.vifs[at].place.space.clone();
        if self.spaces.contains(&space) || self.vifs.iter().any(|vif| vif.place.space.as_deref() == left) {
            return;
        }
        let Some(free) = self.spaces.iter().position(|space| space.as_deref() == left) else { return };
        if let Some(watch) = &self.watch {
            // Without these messages, the check every `check_ns` still finds all changes.
            let _ = watch.follow(free, self.networks.namespace(space.as_deref()).as_ref());
            self.spaces[free] = space;
        }
    }

    /// Hooks a recreated interface at once, and restores removed hooks. If that was done just before, it is done slightly later.
    fn follow(&mut self, change: &Change) {
        let space = change.place();
        let touched = |place: &Place| {
            place.space == self.spaces[space]
                && match change {
                    Change::Interface { index, name, .. } => place.may_be(*index, Some(name)),
                    Change::Unhooked { index, .. } => place.may_be(*index, None),
                    Change::Much { .. } => true,
                }
        };
        for at in (0..self.vifs.len()).filter(|&at| touched(&self.vifs[at].place)) {
            match change {
                // What it sends until it is hooked is charged, but the less the better.
                Change::Interface { index, name, .. } if self.vifs[at].place.may_replace(*index, name) => self.looks.want_now(at),
                _ => self.looks.want(at),
            }
        }
    }

    /// A queue costs every packet something, so it exists only where packets wait. It is added when a vif reaches its limits, and
    /// removed after some time without traffic.
    fn tend_queues(&mut self) {
        let patience = u32::try_from(IDLE_NS / self.start.period_ns).unwrap_or(u32::MAX).max(1);
        let mut put = 0;
        for at in 0..self.vifs.len() {
            if self.vifs[at].place.excess == GuardExcess::Dropped {
                continue;
            }
            let had = self.vifs[at].place.has_queue();
            let mut kept = self.core.kept();
            let apart = holds_apart(&self.start, &kept.rounds, at);
            let wanted = had || leaves_of(&self.start, at).any(|leaf| kept.rounds.wants_queue(leaf, apart));
            if !wanted || (!had && put >= PUT_AT_ONCE) {
                continue;
            }
            put += usize::from(!had);
            // Set the rate that holds packets back before the hook relies on it.
            kept.rounds.queued(self.start.hooks[at].leaf, apart);
            let pace = paced(&self.start, &kept.rounds, at);
            let idle = leaves_of(&self.start, at).all(|leaf| kept.rounds.is_idle(leaf));
            drop(kept);
            // The next check reports a queue that cannot be changed, with its error.
            let _ = self.vifs[at].place.pace(pace, Some(&self.core.plane));
            if self.vifs[at].place.is_unused(idle, patience) {
                // It is tried again in the next turn.
                let _ = self.vifs[at].place.unqueue(&self.core.plane);
            }
            let mut kept = self.core.kept();
            kept.queued[at] = self.vifs[at].place.has_queue();
            hold(&self.start, &self.core.plane, &mut kept.rounds, at, self.vifs[at].place.has_queue());
        }
    }

    fn measure_waits(&mut self) {
        let turns = (0..self.vifs.len().min(LOOKED_AT)).map(|step| (self.next_wait + step) % self.vifs.len());
        let places: Vec<usize> =
            turns.filter(|&at| !self.vifs[at].is_strict).chain((0..self.vifs.len()).filter(|&at| self.vifs[at].is_strict)).collect();
        self.next_wait += LOOKED_AT;
        for at in places {
            if let Some(wait) = self.vifs[at].place.wait_ns() {
                self.vifs[at].waits.add(wait);
                let hook = &self.start.hooks[at];
                // The wait in a queue shared by flow classes says nothing about one class. Departure times already follow the account.
                let mut kept = self.core.kept();
                let owes = clock::monotonic() < self.vifs[at].owes_until_ns;
                if hook.rules.is_empty() && kept.rounds.queue() == GuardQueue::Tbf && !owes {
                    let moved = self.core.plane.settle(hook.leaf, clock::monotonic(), wait, self.start.leaves[hook.leaf].hold_ns);
                    kept.rounds.settled(hook.leaf, moved);
                }
            }
        }
        for Uplink { link, waits } in &mut self.uplinks {
            if let Some(wait) = link.as_mut().and_then(|link| link.wait_ns(clock::monotonic())) {
                waits.add(wait);
            }
        }
    }

    /// Reduces lent bandwidth while a goal is missed. Reports when nothing is left to reduce, or when reducing would not help.
    fn follow_goals(&mut self) {
        for pool in 0..self.start.pools.len() {
            let goals: Vec<usize> = (0..self.start.goals.len()).filter(|&at| self.start.goals[at].pool == pool).collect();
            let strains: Vec<u64> =
                goals.iter().map(|&at| strain(&self.start.goals[at], self.link_wait(at).and(self.own_share(at)))).collect();
            let Some(&worst) = strains.iter().max() else { continue };
            let gave_up = self.core.kept().rounds.strain(pool, worst);
            for (&at, &shared) in goals.iter().zip(&strains) {
                let (goal, own, link) = (&self.start.goals[at], self.own_wait(at), self.link_wait(at));
                let alone = shared <= Throttle::MET && strain(goal, link.and(own)) > Throttle::MET;
                self.goals[at].missed_alone = if alone { self.goals[at].missed_alone.saturating_add(1) } else { 0 };
                let alone = self.goals[at].missed_alone >= Throttle::PATIENCE;
                let unmet = alone || gave_up && shared > Throttle::MET;
                if unmet && !self.goals[at].unmet {
                    self.notes.push(missed(goal, own, link, alone));
                }
                self.goals[at].unmet = unmet;
            }
        }
    }

    /// The longest wait of a goal's vifs in their own queues.
    fn own_wait(&self, goal: usize) -> Wait {
        self.goals[goal].places.iter().filter_map(|&at| self.vifs[at].waits.running()).fold(Wait::default(), Wait::most)
    }

    /// The own wait, up to what the goal permits there. Other vifs cannot reduce the excess that TCP puts into its own queue.
    fn own_share(&self, goal: usize) -> Wait {
        let (own, goal) = (self.own_wait(goal), &self.start.goals[goal]);
        let most = |goal: Option<Nanos>| goal.map_or(Nanos::MAX, |goal| goal / 2);
        Wait { delay_ns: own.delay_ns.min(most(goal.delay_ns)), jitter_ns: own.jitter_ns.min(most(goal.jitter_ns)) }
    }

    fn link_wait(&self, goal: usize) -> Wait {
        self.uplinks[self.start.goals[goal].pool].waits.running().unwrap_or_default()
    }

    /// Checks each place once per `check_ns`, spread over its rounds, so that a thousand checks do not coincide.
    fn look_at_some(&mut self, round: usize) {
        let rounds = (self.start.check_ns / self.start.period_ns).max(1) as usize;
        while self.looked < round * self.vifs.len() / rounds {
            if self.looked.is_multiple_of(self.vifs.len()) {
                self.renew();
            }
            self.look(self.looked % self.vifs.len());
            self.looked += 1;
        }
    }

    /// Releases namespaces that were deleted or replaced, and watches their replacements. An open handle would keep a deleted
    /// namespace alive, with its interfaces and their names.
    fn renew(&mut self) {
        for (file, network) in self.networks.outdated() {
            self.vifs.iter_mut().for_each(|vif| vif.place.let_go(&network));
            self.uplinks.iter_mut().for_each(|uplink| drop(uplink.link.take_if(|link| link.is_in(&network))));
            drop(network);
            let Some(watch) = &self.watch else { continue };
            for space in (0..self.spaces.len()).filter(|&space| self.spaces[space] == file) {
                // Without these messages, the check every `check_ns` still finds all changes.
                let _ = watch.follow(space, self.networks.namespace(file.as_deref()).as_ref());
            }
        }
        for (uplink, pool) in self.uplinks.iter_mut().zip(&self.start.pools) {
            if let (None, Some(wanted)) = (&uplink.link, &pool.link) {
                uplink.link = Link::find(&mut self.networks, wanted, pool.capacity_bps).ok();
            }
        }
    }

    fn look(&mut self, at: usize) {
        let looked = self.vifs[at].place.look(&self.core.plane, &mut self.networks);
        let (was_lost, is_lost) = (self.vifs[at].is_lost, !matches!(&looked, Ok(look) if look.whereabouts != Where::Away));
        self.vifs[at].is_lost = is_lost;
        match looked {
            Ok(look) if !is_lost => self.found(at, look),
            // What is lost is reported once.
            _ if was_lost => {}
            Ok(_) => {
                let text = format!("the interface left its namespace, where its hook ended{}", self.hold_at_other_end(at));
                self.note(at, Finding::of(GuardFinding::Lost, text));
            }
            Err(error) => self.note(at, Finding::of(GuardFinding::Lost, error.to_string())),
        }
        self.compare(at);
    }

    /// Reports what a check found at an interface that is there.
    fn found(&mut self, at: usize, look: Look) {
        let vif = &mut self.vifs[at];
        let called = vif.place.called.clone();
        let decoy = if let Where::Imitated(index) = look.whereabouts { Some(index) } else { None };
        let is_new_decoy = std::mem::replace(&mut vif.decoy, decoy) != decoy && decoy.is_some();
        let mut repaired = |text: String| self.note(at, Finding::of(GuardFinding::Repaired, text));
        if matches!(look.whereabouts, Where::Replaced(_)) {
            repaired("the interface had been recreated; the hook is there again".into());
            self.hooked_late(at, look.unhooked_bytes);
            self.has_new_places = true;
        } else if !look.whole {
            // Traffic that passed without a hook counts against the vif, because the tenant may have removed the hook for that.
            repaired("hook or queue had been removed; it is there again".into());
        } else if look.renamed && !is_new_decoy {
            repaired(format!("the interface is called {called} now; its hook went along"));
        }
        if is_new_decoy {
            let text = format!("the interface is called {called} now, and another one has its name; the hook stays at {called}");
            self.note(at, Finding::of(GuardFinding::Decoy, text));
        }
    }

    /// Begins anew at another interface. What it carried before it was hooked is charged: its leaves wait for as long as these bytes
    /// take at their rates, so that no more passes in the end.
    fn hooked_late(&mut self, at: usize, bytes: u64) {
        let first = self.vifs[at].place.counted().ok().map(|[way, _]| self.read(at, way));
        let vif = &mut self.vifs[at];
        (vif.account, vif.unhooked) = (first.map(|first| Account::hooked_late(first, bytes)), None);
        let leaves: Vec<usize> = leaves_of(&self.start, at).collect();
        let kept = self.core.kept();
        let bps: u64 = leaves.iter().map(|&leaf| kept.rounds.grants()[leaf].bps).sum();
        let owed_ns = (u128::from(bytes) * 8_000_000_000 / u128::from(bps.max(1))).min(u128::from(OWED_NS_MAX)) as Nanos;
        if owed_ns > 0 {
            let now = clock::monotonic();
            for leaf in leaves {
                self.core.plane.charge(leaf, now, owed_ns);
            }
            vif.owes_until_ns = now + owed_ns;
        }
    }

    fn compare(&mut self, at: usize) {
        // Of two counters, the one that a packet meets last is read first: the hook has already seen all bytes that it counts.
        let from_ns = clock::monotonic();
        let counted = self.vifs[at].place.counted().ok();
        let allowed = self.allowed(at);
        self.watch_other_end(at);
        let behind_bytes = std::mem::take(&mut self.vifs[at].behind_bytes);
        let judgement = counted.map_or(Judgement::Fine, |[way, other]| {
            self.compare_other_way(at, other.bytes);
            self.judge(at, Reading { from_ns, ..self.read(at, way) }, allowed)
        });
        match judgement {
            // The other end saw the same packets.
            Judgement::Bypassed(bytes) if bytes <= behind_bytes + SLACK_BYTES => {}
            Judgement::Bypassed(bytes) => self.bypassed(at, bytes - behind_bytes),
            Judgement::Fine => {}
            Judgement::Exceeded(bytes) => self.note(at, exceeded(bytes, "bytes")),
            Judgement::ExceededPackets(packets) => self.note(at, exceeded(packets, "packets")),
        }
    }

    fn judge(&mut self, at: usize, now: Reading, allowed: Allowed) -> Judgement {
        let vif = &mut self.vifs[at];
        let Some(account) = &mut vif.account else {
            vif.account = Some(Account::new(now, vif.place.waiting_bytes().unwrap_or(0)));
            return Judgement::Fine;
        };
        account.judge(now, allowed)
    }

    /// Finds what reached the other end of a veth past the hook. Reads only memory, so this is done in each turn.
    fn watch_other_end(&mut self, at: usize) {
        if !self.vifs[at].place.has_backstop() {
            return;
        }
        let held_bytes = self.allowed(at).held_bytes;
        if let Some(bytes) = self.bypassed_at_other_end(at, held_bytes) {
            self.vifs[at].behind_bytes += bytes;
            self.bypassed(at, bytes);
        }
    }

    /// Bytes that reached the other end of a veth, and that the hook never saw: whatever the tenant did to its end.
    fn bypassed_at_other_end(&mut self, at: usize, held_bytes: u64) -> Option<u64> {
        let came = self.core.plane.counters(backstop_of(&self.start, at));
        let carried = Count { bytes: came.passed_bytes + came.dropped_bytes, packets: came.passed_packets + came.dropped_packets };
        let now = Reading { counts_dropped: false, exact: true, ..self.read(at, carried) };
        let vif = &mut self.vifs[at];
        let Some(account) = &mut vif.behind else {
            vif.behind = Some(Account::new(now, vif.place.waiting_bytes().unwrap_or(0)));
            return None;
        };
        account.bypassed(now, held_bytes)
    }

    /// Compares what passes in the direction without a hook with the link: more than it carries cannot be what the policy is about.
    fn compare_other_way(&mut self, at: usize, bytes: u64) {
        if self.vifs[at].has_both_ways {
            return;
        }
        let hook = &self.start.hooks[at];
        let capacity_bps = self.start.pools[self.start.leaves[hook.leaf].pool].capacity_bps;
        let now = clock::monotonic();
        let way = self.vifs[at].unhooked.get_or_insert_with(|| Unhooked::new(now, bytes));
        if let Some(bps) = way.judge(now, bytes, capacity_bps) {
            let text = wrong_side(hook.direction, bps, capacity_bps);
            self.note(at, Finding::of(GuardFinding::WrongSide, text));
        }
    }

    /// The counters of the hook, beside those of an interface that were read before.
    fn read(&self, at: usize, interface: Count) -> Reading {
        let from_ns = clock::monotonic();
        let (mut passed, mut dropped, mut tcp_bytes) = (Count::default(), Count::default(), 0);
        for counted in leaves_of(&self.start, at).map(|leaf| self.core.plane.counters(leaf)) {
            passed.bytes += counted.passed_bytes;
            passed.packets += counted.passed_packets;
            dropped.bytes += counted.dropped_bytes;
            dropped.packets += counted.dropped_packets;
            tcp_bytes += counted.tcp_bytes;
        }
        let counts_dropped = self.vifs[at].place.counts_dropped();
        let exact = self.vifs[at].place.counts_exactly();
        Reading { from_ns, at_ns: clock::monotonic(), interface, passed, dropped, tcp_bytes, counts_dropped, exact }
    }

    fn bypassed(&mut self, at: usize, bytes: u64) {
        let text = format!("bypassed the hook{}", self.hold_at_other_end(at));
        self.note(at, Finding { kind: GuardFinding::Bypassed, amount: bytes, unit: "bytes", text });
    }

    /// Holds what passes no hook at the interface's other end, and says so.
    fn hold_at_other_end(&self, at: usize) -> &'static str {
        if !self.vifs[at].place.has_backstop() {
            return "";
        }
        self.core.tighten(at);
        "; from now on the interface's other end lets pass no more than is granted"
    }

    fn note(&mut self, at: usize, finding: Finding) {
        let kind = finding.kind;
        if let Some(text) = self.repeats.add(at, finding, clock::monotonic()) {
            self.report_finding(at, kind, text);
        }
    }

    fn report_finding(&mut self, at: usize, kind: GuardFinding, text: String) {
        let about = self.start.leaves[self.start.hooks[at].leaf].name.clone();
        self.notes.push(GuardNote { about, kind, text });
    }

    fn allowed(&self, at: usize) -> Allowed {
        let ceiling_bps = ceiling_bps(&self.start, at);
        let during = |ns: Nanos| (u128::from(ceiling_bps) * u128::from(ns) / 8_000_000_000) as u64;
        let hook = &self.start.hooks[at];
        let leaf = &self.start.leaves[hook.leaf];
        // Each flow class has its own burst, and each may end with one packet that exceeds it.
        let bursts = 1 + hook.rules.len() as u64;
        let packets = ceiling_pps(&self.start, at);
        let at_once_ns = u128::from(bursts * leaf.burst_ns + leaf.hold_ns);
        let (tcp_bytes, queue) = {
            let kept = self.core.kept();
            (kept.rounds.tcp_packets(hook.leaf) * LARGEST, kept.rounds.queue())
        };
        // A `tbf` for TCP has a bucket for the largest packet, which is full after a pause. Its backlog, which corrects the hook's
        // account, is known to one packet.
        let bucket_bytes = if queue == GuardQueue::Tbf { 2 * LARGEST } else { 0 };
        Allowed {
            ceiling_bps,
            burst_bytes: bursts * (during(leaf.burst_ns) + LARGEST),
            held_bytes: during(leaf.hold_ns).max(tcp_bytes) + bucket_bytes,
            ceiling_pps: packets,
            burst_packets: bursts * SEGMENTS + packets.map_or(0, |pps| (u128::from(pps) * at_once_ns / 1_000_000_000) as u64),
        }
    }

    fn report(&mut self) -> Report {
        let (from_ns, at_ns) = (self.reported_ns, clock::monotonic());
        let links: Vec<Option<Wait>> = self.uplinks.iter_mut().map(|uplink| uplink.waits.take()).collect();
        let own: Vec<Option<Wait>> = self.vifs.iter_mut().map(|vif| vif.waits.take()).collect();
        let mut rows: Vec<GuardRow> = (0..self.start.leaves.len()).map(|leaf| self.row(leaf, at_ns - from_ns)).collect();
        for (at, own) in own.into_iter().enumerate() {
            self.judge_wait(at, own);
            let seen = together(own, links[self.start.leaves[self.start.hooks[at].leaf].pool]);
            for leaf in leaves_of(&self.start, at) {
                (rows[leaf].delay_ns, rows[leaf].jitter_ns) = (seen.map(|wait| wait.delay_ns), seen.map(|wait| wait.jitter_ns));
            }
        }
        let mut kept = self.core.kept();
        let pool = |(at, link): (usize, &Option<Wait>)| GuardPoolRow {
            divided_bps: kept.rounds.divided_bps(at),
            delay_ns: link.map(|wait| wait.delay_ns),
        };
        let pools = links.iter().enumerate().map(pool).collect();
        self.reported_ns = at_ns;
        let (round_ns_max, decide_ns_max) = (std::mem::take(&mut kept.round_ns_max), std::mem::take(&mut kept.decide_ns_max));
        let (from_ns, at_ns) = (self.session.at(from_ns), self.session.at(at_ns));
        Report { from_ns, at_ns, rows, pools, notes: std::mem::take(&mut self.notes), round_ns_max, decide_ns_max }
    }

    /// Reports packets that waited for longer than stated in two reports in succession: the guard itself held them back. While a goal
    /// holds others back, they wait because the policy says so.
    fn judge_wait(&mut self, at: usize, own: Option<Wait>) {
        let kept = self.core.kept();
        if kept.rounds.is_throttled(self.start.leaves[self.start.hooks[at].leaf].pool) {
            return;
        }
        let may_wait = |leaf: usize| kept.rounds.may_wait_ns(leaf);
        let Some(most) = leaves_of(&self.start, at).map(may_wait).max() else { return };
        let granted: u64 = leaves_of(&self.start, at).map(|leaf| kept.rounds.grants()[leaf].bps).sum();
        drop(kept);
        let finding = own.and_then(|own| waited(own.delay_ns, most, granted));
        let waited = &mut self.vifs[at].waited;
        *waited = if finding.is_some() { waited.saturating_add(1) } else { 0 };
        if let Some(finding) = finding.filter(|_| self.vifs[at].waited > 1) {
            self.note(at, finding);
        }
    }

    fn row(&mut self, leaf: usize, elapsed: Nanos) -> GuardRow {
        let now = self.core.plane.counters(leaf);
        let before = std::mem::replace(&mut self.reported[leaf], now);
        let rate = |count: u64| (u128::from(count) * 1_000_000_000 / u128::from(elapsed.max(1))) as u64;
        let (passed, dropped) = (now.passed_bytes - before.passed_bytes, now.dropped_bytes - before.dropped_bytes);
        let passed_packets = now.passed_packets - before.passed_packets;
        let dropped_packets = now.dropped_packets - before.dropped_packets;
        let granted = self.core.kept().rounds.grants()[leaf];
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

fn exceeded(amount: u64, unit: &'static str) -> Finding {
    Finding { kind: GuardFinding::Exceeded, amount, unit, text: "above the ceiling".into() }
}

/// The finding of packets that waited, in the mean, for more than twice as long as they may. A mean up to that may come from a rate
/// that changed meanwhile.
fn waited(delay_ns: Nanos, most_ns: Nanos, granted_bps: u64) -> Option<Finding> {
    let ms = |ns: Nanos| ns / 1_000_000;
    let text = format!(
        "packets waited {} ms on average, and may wait {} ms; {:.3} Mbit/s are granted now: give the vif a guarantee, or a larger one",
        ms(delay_ns),
        ms(most_ns),
        granted_bps as f64 / 1e6
    );
    (delay_ns > 2 * most_ns).then(|| Finding::of(GuardFinding::Waited, text))
}

fn wrong_side(hooked: GuardDirection, bps: u64, capacity_bps: u64) -> String {
    let (went, side) = match hooked {
        GuardDirection::Egress => ("came in", "outside"),
        GuardDirection::Ingress => ("left", "inside"),
    };
    let mega = |bps: u64| bps as f64 / 1e6;
    let seen = format!("{:.0} Mbit/s {went} through the interface, more than the {:.0} Mbit/s of the link", mega(bps), mega(capacity_bps));
    format!("{seen}, and no hook limits that direction; if the tenant sends them, give the vif `side: {side}`, else limit `receive`")
}

/// Places of interfaces that have a hook in each direction.
fn both_ways(start: &GuardStart) -> Vec<bool> {
    let mut ways: HashMap<(&Option<String>, &String), usize> = HashMap::new();
    start.hooks.iter().for_each(|hook| *ways.entry((&hook.namespace, &hook.interface)).or_default() += 1);
    start.hooks.iter().map(|hook| ways[&(&hook.namespace, &hook.interface)] > 1).collect()
}

/// The sum of the waits in two successive queues. A queue without a reading adds nothing.
fn together(own: Option<Wait>, link: Option<Wait>) -> Option<Wait> {
    Some(own.or(link)?.and(own.and(link).unwrap_or_default()))
}

/// Measured wait over goal, in units of [`Throttle::MET`], for the limit that is missed most.
fn strain(goal: &GuardGoal, wait: Wait) -> u64 {
    let over = |measured: Nanos, goal: Option<Nanos>| goal.map_or(0, |goal| measured.saturating_mul(Throttle::MET) / goal.max(1));
    over(wait.delay_ns, goal.delay_ns).max(over(wait.jitter_ns, goal.jitter_ns))
}

/// `alone`: the wait is in the goal's own vifs' queues.
fn missed(goal: &GuardGoal, own: Wait, link: Wait, alone: bool) -> GuardNote {
    let ms = |ns: Nanos| ns as f64 / 1e6;
    let describe = |what: &str, goal: Option<Nanos>, measured: Nanos| {
        goal.map(|goal| format!("{what} is {:.2} ms, its goal {:.2} ms", ms(measured), ms(goal)))
    };
    let both = link.and(own);
    let both = [describe("delay", goal.delay_ns, both.delay_ns), describe("jitter", goal.jitter_ns, both.jitter_ns)];
    let said: Vec<String> = both.into_iter().flatten().collect();
    let why = if alone {
        let own = ms(own.delay_ns);
        format!("{own:.2} ms wait at its own vif, where TCP has up to three packets of 64 KiB; give it more bit/s, or a larger goal")
    } else {
        "nothing but guarantees is sent any more; lower these, or give a goal that can be met".to_owned()
    };
    let text = if alone { format!("{}: {why}", said.join("; ")) } else { format!("{}, though {why}", said.join("; ")) };
    GuardNote { about: goal.name.clone(), kind: GuardFinding::Unmet, text }
}

#[cfg(test)]
mod tests {
    use partywall_bpf::tc::Network;
    use partywall_bpf::Namespace;
    use partywall_wire::{GuardDemand, GuardDivision, GuardLeaf, GuardPool};

    use super::*;

    /// A request with one vif, the `lo` of the thread's namespace.
    fn request() -> GuardStart {
        let leaf = GuardLeaf {
            name: "vm".into(),
            pool: 0,
            totals: vec![],
            priority: 1,
            guarantee_bps: 10_000_000,
            ceiling_bps: 20_000_000,
            guarantee_pps: 0,
            ceiling_pps: None,
            burst_ns: 10_000_000,
            hold_ns: 20_000_000,
            held_at_source: false,
        };
        let hook = GuardHook {
            namespace: None,
            interface: "lo".into(),
            direction: GuardDirection::Egress,
            leaf: 0,
            rules: vec![],
            hold: false,
            backstop: false,
        };
        GuardStart {
            id: "test".into(),
            pools: vec![GuardPool { name: "link".into(), capacity_bps: 100_000_000, capacity_pps: None, link: None }],
            totals: vec![],
            leaves: vec![leaf],
            hooks: vec![hook],
            goals: vec![],
            period_ns: 10_000_000,
            report_ns: 100_000_000,
            check_ns: 100_000_000,
            fallback_after_ns: Some(1_000_000_000),
            queue: Some(GuardQueue::Tbf),
            demand: GuardDemand::default(),
            division: GuardDivision::default(),
            transient: false,
        }
    }

    #[test]
    fn a_time_or_rate_whose_sums_leave_64_bits_is_refused_by_name() {
        type Change = (&'static str, fn(&mut GuardStart));
        let changes: [Change; 8] = [
            ("burst_ns", |start| start.leaves[0].burst_ns = u64::MAX),
            ("hold_ns", |start| start.leaves[0].hold_ns = TIME_MOST + 1),
            ("ceiling_bps", |start| start.leaves[0].ceiling_bps = u64::MAX / 2),
            ("ceiling_pps", |start| start.leaves[0].ceiling_pps = Some(u64::MAX)),
            ("guarantee_pps", |start| start.leaves[0].guarantee_pps = RATE_MOST + 1),
            ("capacity_bps", |start| start.pools[0].capacity_bps = u64::MAX),
            ("check_ns", |start| start.check_ns = u64::MAX),
            ("fallback_after_ns", |start| start.fallback_after_ns = Some(u64::MAX)),
        ];
        for (what, change) in changes {
            let mut start = request();
            change(&mut start);
            let why = checked(&start).unwrap_err().to_string();
            assert!(why.contains(&format!("{what} is ")) && why.contains("; give at most "), "{why}");
        }
        assert!(checked(&request()).is_ok());
        assert!(RATE_MOST.checked_mul(LEAVES_MAX as u64).is_some());
    }

    /// The parts of a guard, without the fallback process.
    fn parts(start: &GuardStart) -> Result<(Arc<Core>, Tender, Arc<Watch>), GuardError> {
        parts_in(start, &SessionClock::default())
    }

    fn parts_in(start: &GuardStart, session: &SessionClock) -> Result<(Arc<Core>, Tender, Arc<Watch>), GuardError> {
        let mut networks = Networks::default();
        let mut places = places(start, GuardQueue::Tbf, &mut networks)?;
        let plane = load(start)?;
        let mut rounds = Rounds::new(start, GuardQueue::Tbf, clock::monotonic());
        prepare(start, &plane, &mut rounds, &places)?;
        let (spaces, namespaces) = networks.namespaces();
        let watch = Arc::new(Watch::new(&namespaces).map_err(GuardError::kernel("listening"))?);
        put_all(start, &plane, &rounds, &mut places)?;
        let core = Arc::new(Core::new(start.clone(), plane, rounds, &places));
        let mut tender = Tender::new(start.clone(), session, core.clone(), places, vec![None]);
        (tender.networks, tender.spaces, tender.watch) = (networks, spaces, Some(watch.clone()));
        Ok((core, tender, watch))
    }

    /// A running guard of these parts, without the fallback process.
    fn running((core, tender, watch): (Arc<Core>, Tender, Arc<Watch>)) -> Guard {
        let mut guard = Guard {
            start: tender.start.clone(),
            session: SessionClock::default(),
            shared: Arc::default(),
            core: core.clone(),
            excess: vec![],
            without_backstop: vec![],
            queue: GuardQueue::Tbf,
            watch,
            fallback_process: Arc::default(),
            threads: vec![],
        };
        guard.run(core, tender).unwrap();
        guard
    }

    #[test]
    fn a_guard_of_which_a_thread_panics_ends_whole_and_says_so() {
        let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
        let rounds: fn(&Core, &mut Tender) = |core, _| core.kept().queued.push(true);
        let reports: fn(&Core, &mut Tender) = |_, tender| tender.reported.clear();
        for (thread, plant) in [("guard", rounds), ("guard-tend", reports)] {
            let outcome = namespace.inside(|| {
                let Ok(mut parts) = parts(&request()).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
                plant(&parts.0, &mut parts.1);
                let mut guard = running(parts);
                let until_ns = clock::monotonic() + 30_000_000_000;
                while guard.ended().is_none() {
                    assert!(clock::monotonic() < until_ns, "the guard did not say that {thread} had panicked");
                    clock::sleep_until(clock::monotonic() + 1_000_000);
                }
                let why = guard.ended().unwrap();
                assert!(why.starts_with(&format!("its thread {thread} panicked")), "{why}");
                assert_eq!(guard.adjust(&request()).unwrap_err().to_string(), "the guard has ended");
                Ok(())
            });
            outcome.unwrap();
        }
    }

    #[test]
    fn a_fallback_process_that_ended_is_started_again_and_reported() {
        let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
        let outcome = namespace.inside(|| {
            let Ok((_, mut tender, _)) = parts(&request()).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
            tender.keep_fallback_process();
            assert_eq!(tender.notes, []);
            let process = tender.fallback_process.clone();
            *process.lock().unwrap() = FallbackProcess::start().unwrap();
            let first = process.lock().unwrap().child().id();
            process.lock().unwrap().child().kill().unwrap();
            process.lock().unwrap().child().wait().unwrap();
            tender.keep_fallback_process();
            let text = "the fallback process had ended, and was started again".into();
            assert_eq!(tender.report().notes, [GuardNote { about: "test".into(), kind: GuardFinding::Repaired, text }]);
            assert_ne!(process.lock().unwrap().child().id(), first);
            process.lock().unwrap().kill();
            Ok(())
        });
        outcome.unwrap();
    }

    #[test]
    fn a_guard_that_was_not_stopped_has_not_ended() {
        let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
        let outcome = namespace.inside(|| {
            let Ok(parts) = parts(&request()).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
            let mut guard = running(parts);
            guard.adjust(&request()).unwrap();
            assert_eq!(guard.ended(), None);
            Ok(())
        });
        outcome.unwrap();
    }

    #[test]
    fn a_policy_is_replaced_whole_or_not_at_all() {
        let start = request();
        let changed = |change: &dyn Fn(&mut GuardStart)| {
            let mut to = start.clone();
            change(&mut to);
            alike(&start, &to).map_err(|error| error.to_string())
        };
        let said = |change: &dyn Fn(&mut GuardStart)| changed(change).unwrap_err();
        assert_eq!(changed(&|to| to.leaves[0].ceiling_bps = 5_000_000), Ok(()));
        assert_eq!(changed(&|to| to.hooks[0].interface = "moved".into()), Ok(()), "a vif stays where it is");
        assert!(said(&|to| to.leaves[0].name = "other".into()).starts_with("\"other\" is not in the running policy"));
        assert!(said(&|to| to.leaves.clear()).starts_with("\"vm\" is in the running policy only"));
        assert!(said(&|to| to.hooks[0].hold = true).contains("\"vm\" has another side, excess or flow classes"));
        assert!(said(&|to| to.queue = Some(GuardQueue::Fq)).contains("queue"));
        assert!(said(&|to| to.id = "b".into()).contains("called"));
    }

    #[test]
    fn a_new_policy_holds_at_once_and_hooks_stay() {
        let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
        let outcome = namespace.inside(|| {
            let Ok((core, mut tender, _)) = parts(&request()).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
            core.round();
            let mut to = request();
            (to.leaves[0].ceiling_bps, to.leaves[0].guarantee_bps) = (5_000_000, 3_000_000);
            to.hooks[0].interface = "ignored".into();
            let (_, at_ns) = tender.adjust(to);
            assert!(at_ns <= clock::monotonic());
            assert!(core.kept().rounds.grants()[0].bps <= 5_000_000, "before another round");
            assert_eq!(core.kept().rounds.fallback(0).bps, 3_000_000);
            assert_eq!(tender.allowed(0).ceiling_bps, 5_000_000);
            let looked = tender.vifs[0].place.look(&core.plane, &mut tender.networks);
            assert!(matches!(looked, Ok(Look { whereabouts: Where::Same, renamed: false, whole: true, .. })));
            Ok(())
        });
        outcome.unwrap();
    }

    #[test]
    fn packets_of_a_new_interface_are_not_sent_through_the_detour_of_the_old_one() {
        let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
        let network = Network::of(&namespace).unwrap();
        // Any interface that can be removed: an ifb.
        let Ok(index) = network.add_detour("vif") else { return eprintln!("skipped: ifb") };
        let mut start = request();
        (start.hooks[0].interface, start.hooks[0].direction) = ("vif".into(), GuardDirection::Ingress);
        let outcome = namespace.inside(|| {
            let Ok((core, mut tender, _)) = parts(&start).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
            let place = &mut tender.vifs[0].place;
            place.pace(QueueRate { bps: 10_000_000, strict: true, tcp: true }, Some(&core.plane)).unwrap();
            assert_eq!(core.plane.detour_of(0), u64::from(place.detour().unwrap()));
            network.remove_detour(index)?;
            // Nothing is there to be hooked, so what was done before the hook is seen.
            assert!(place.hook_at(Arc::new(Network::of(&namespace)?), index, &core.plane).is_err());
            assert_eq!(core.plane.detour_of(0), 0);
            Ok(())
        });
        outcome.unwrap();
    }

    #[test]
    fn the_heartbeat_is_in_kernel_time_however_the_sessions_clock_was_adjusted() {
        let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
        let session = SessionClock::default();
        session.shift(3_600_000_000_000).unwrap();
        let outcome = namespace.inside(|| {
            let parts = parts_in(&request(), &session);
            let Ok((core, mut tender, _)) = parts.map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
            let before_ns = clock::monotonic();
            core.round();
            let report = tender.report();
            let kernels = before_ns..=clock::monotonic();
            assert!(kernels.contains(&core.plane.beaten_ns()), "{} is not in the kernel's {kernels:?}", core.plane.beaten_ns());
            let sessions = session.at(before_ns)..=session.now();
            assert!(sessions.contains(&report.at_ns), "{} is not in the session's {sessions:?}", report.at_ns);
            Ok(())
        });
        outcome.unwrap();
    }

    #[test]
    fn the_heartbeat_is_never_stale_while_a_tenant_deletes_its_filters_in_a_loop() {
        let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
        let tenant = Network::of(&namespace).unwrap();
        let seconds = 3;
        let outcome = namespace.inside(|| {
            let (core, mut tender, watch) = match parts(&request()) {
                Ok(parts) => parts,
                Err(why) => {
                    eprintln!("skipped: {why}");
                    return Ok(());
                }
            };
            let shared = Shared::default();
            thread::scope(|scope| {
                scope.spawn(|| core.run(&shared));
                scope.spawn(|| tender.run(&shared));
                scope.spawn(|| listen(&watch, &shared));
                let (lo, until, mut oldest) = (tenant.index("lo").unwrap(), clock::monotonic() + seconds * 1_000_000_000, 0);
                while clock::monotonic() < until {
                    for filter in tenant.filters(lo).unwrap() {
                        tenant.unhook(lo, &filter).unwrap();
                    }
                    let beaten_ns = core.plane.beaten_ns();
                    oldest = oldest.max(clock::monotonic().saturating_sub(beaten_ns));
                }
                shared.end();
                watch.end();
                assert!(oldest < 1_000_000_000, "a heartbeat was {} ms old", oldest / 1_000_000);
            });
            let notes: Vec<GuardNote> = shared.state().reports.iter().flat_map(|report| report.notes.clone()).collect();
            assert!((1..=1 + seconds).contains(&(notes.len() as u64)), "{notes:?}");
            Ok(())
        });
        outcome.unwrap();
    }
}
