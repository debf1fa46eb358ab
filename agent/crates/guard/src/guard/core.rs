//! The rates and the heartbeat. No system call is made while they are locked, because rounds would wait for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use partywall_clock::{self as clock, Nanos};
use partywall_wire::{GuardQueue, GuardStart};

use super::shared::Shared;
use super::start::{backstop_at_ceiling, backstop_of, backstop_of_all, leaves_of};
use crate::place::{Place, QueueRate};
use crate::plane::{Grant, Plane};
use crate::round::Rounds;

/// State shared by the thread that keeps the rates and the thread that manages the rest.
pub(super) struct Core {
    pub(super) plane: Plane,
    kept: Mutex<Kept>,
}

pub(super) struct Kept {
    start: Arc<GuardStart>,
    pub(super) rounds: Rounds,
    /// Per hook, whether there is a queue behind it.
    pub(super) queued: Vec<bool>,
    /// Hooks that traffic bypassed. Their backstop permits no more than is granted.
    went_round: Vec<usize>,
    pub(super) round_ns_max: Nanos,
    pub(super) decide_ns_max: Nanos,
}

impl Core {
    pub(super) fn new(start: GuardStart, plane: Plane, rounds: Rounds, places: &[Place]) -> Self {
        let queued = places.iter().map(Place::has_queue).collect();
        let start = Arc::new(start);
        Self { plane, kept: Mutex::new(Kept { start, rounds, queued, went_round: vec![], round_ns_max: 0, decide_ns_max: 0 }) }
    }

    /// Replaces the policy between two rounds. Returns the time from which it holds.
    pub(super) fn adjust(&self, start: &GuardStart) -> Nanos {
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
    pub(super) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn run(&self, shared: &Shared) {
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

    pub(super) fn round(&self) {
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
    pub(super) fn tighten(&self, at: usize) {
        let mut kept = self.kept();
        if !kept.went_round.contains(&at) {
            kept.went_round.push(at);
            // Also limits it to what the hook itself falls back to when the heartbeat stops.
            self.back_up(&kept, at, clock::monotonic());
        }
    }

    /// Undoes [`Core::tighten`].
    pub(super) fn widen(&self, at: usize) {
        let mut kept = self.kept();
        if let Some(member) = kept.went_round.iter().position(|&went| went == at) {
            kept.went_round.swap_remove(member);
            self.back_up(&kept, at, clock::monotonic());
        }
    }
}

/// Lets packets of hook `at` run ahead of their rates if there is a queue behind it.
pub(super) fn hold(start: &GuardStart, plane: &Plane, rounds: &mut Rounds, at: usize, queue: bool) {
    let apart = holds_apart(start, rounds, at);
    for leaf in leaves_of(start, at) {
        rounds.queued(leaf, queue && apart);
        let [granted, fallback] = if queue { rounds.ahead(leaf) } else { Default::default() };
        plane.hold(leaf, granted, fallback);
    }
}

/// Whether the queue behind hook `at` holds back each leaf separately. A rate queue shared by flow classes drains at their joint
/// rate. It holds back TCP, which watches its own waiting bytes. But datagrams of one class could pass at the rate of another.
pub(super) fn holds_apart(start: &GuardStart, rounds: &Rounds, at: usize) -> bool {
    rounds.queue() == GuardQueue::Fq || start.hooks[at].rules.is_empty()
}

/// The settings of the queue behind hook `at`.
pub(super) fn paced(start: &GuardStart, rounds: &Rounds, at: usize) -> QueueRate {
    let sum = |of: &dyn Fn(usize) -> u64| leaves_of(start, at).map(of).sum();
    let any = |of: &dyn Fn(usize) -> bool| leaves_of(start, at).any(of);
    QueueRate {
        bps: sum(&|leaf| rounds.pace_bps(leaf)),
        strict: any(&|leaf| rounds.holds_back(leaf)),
        tcp: any(&|leaf| rounds.speaks_tcp(leaf)),
        // What flow classes pass is limited by their own accounts, which nothing corrects by the queue that they share.
        short: leaves_of(start, at).count() == 1 && any(&|leaf| rounds.wants_more(leaf)),
    }
}
