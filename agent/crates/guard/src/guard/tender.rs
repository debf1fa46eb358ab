//! Everything that calls the kernel: queues and their waits, checks of the interfaces, and goals.

mod judge;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use partywall_allocation::Throttle;
use partywall_bpf::{Change, Watch};
use partywall_clock::{self as clock, Nanos, SessionClock};
use partywall_wire::{GuardExcess, GuardFinding, GuardGoal, GuardHook, GuardMove, GuardNote, GuardQueue, GuardStart};

use super::core::{hold, holds_apart, paced, Core};
use super::shared::{Adjustment, Shared, Woken};
use super::start::leaves_of;
use super::Report;
use crate::change::{Finding, Looks, Repeats};
use crate::check::{Account, Unhooked};
use crate::delay::{Wait, Waits};
use crate::fallback::{FallbackProcess, HeldPlace, Instructions};
use crate::place::{Link, Look, Networks, Place};
use crate::plane::Counters;
use crate::whereabouts::Where;

/// Queues of vifs checked per round. Thousands take turns; vifs with a goal are checked in every round.
const LOOKED_AT: usize = 32;
/// Queues changed per round, because each change is a system call.
const PUT_AT_ONCE: usize = 16;
/// Places checked because of changes before the thread looks for other due work.
const FOLLOWED_AT_ONCE: usize = 16;
/// Maximum time for which a new interface pays for what it sent before it was hooked. One that was in use elsewhere may have sent much.
const OWED_NS_MAX: Nanos = 1_000_000_000;
/// A queue is removed after this time without packets.
const IDLE_NS: Nanos = 10_000_000_000;

/// One hook, and the state of its vif.
pub(super) struct Vif {
    pub(super) place: Place,
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
pub(super) struct Tender {
    pub(super) start: GuardStart,
    session: SessionClock,
    core: Arc<Core>,
    /// Per hook.
    pub(super) vifs: Vec<Vif>,
    goals: Vec<Goal>,
    /// Per pool.
    uplinks: Vec<Uplink>,
    pub(super) networks: Networks,
    /// Files of the namespaces that are watched for changes.
    pub(super) spaces: Vec<Option<String>>,
    pub(super) watch: Option<Arc<Watch>>,
    pub(super) fallback_process: Arc<Mutex<FallbackProcess>>,
    next_wait: usize,
    /// Per leaf.
    pub(super) reported: Vec<Counters>,
    reported_ns: Nanos,
    pub(super) notes: Vec<GuardNote>,
    repeats: Repeats,
    looks: Looks,
    looked: usize,
    turns: usize,
    /// Interfaces were created again since the fallback process was last told where the hooks are.
    has_new_places: bool,
}

impl Tender {
    pub(super) fn new(start: GuardStart, session: &SessionClock, core: Arc<Core>, places: Vec<Place>, links: Vec<Option<Link>>) -> Self {
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

    pub(super) fn run(&mut self, shared: &Shared) {
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
    pub(super) fn end(&mut self) {
        if self.start.transient {
            self.fallback_process.lock().unwrap_or_else(PoisonError::into_inner).kill();
            self.vifs.iter_mut().for_each(|vif| vif.place.clear(&self.core.plane));
        }
    }

    /// Starts the fallback process again if it has ended. Otherwise nobody would notice until it is needed.
    pub(super) fn keep_fallback_process(&mut self) {
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
    pub(super) fn instruct_fallback_process(&mut self) {
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
    pub(super) fn adjust(&mut self, start: GuardStart) -> (Option<Report>, Nanos) {
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
                // The next check reports a queue that cannot be changed, with its error.
                let _ = self.vifs[at].place.waits(wait);
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
}

fn goals(start: &GuardStart) -> Vec<Goal> {
    let goal_of = |goal: &GuardGoal| {
        let leaves: HashSet<usize> = goal.leaves.iter().copied().collect();
        let places = (0..start.hooks.len()).filter(|&at| leaves_of(start, at).any(|leaf| leaves.contains(&leaf))).collect();
        Goal { places, unmet: false, missed_alone: 0 }
    };
    start.goals.iter().map(goal_of).collect()
}

/// Places of interfaces that have a hook in each direction.
fn both_ways(start: &GuardStart) -> Vec<bool> {
    let mut ways: HashMap<(&Option<String>, &String), usize> = HashMap::new();
    start.hooks.iter().for_each(|hook| *ways.entry((&hook.namespace, &hook.interface)).or_default() += 1);
    start.hooks.iter().map(|hook| ways[&(&hook.namespace, &hook.interface)] > 1).collect()
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
