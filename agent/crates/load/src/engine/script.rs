//! Users in their scripts: arriving, advancing from step to step, leaving.

use std::cmp::Reverse;

use partywall_clock::Nanos;
use partywall_wire::load::{LoadErrorKind, Think};

use super::Worker;
use crate::compress::{Done, Job};
use crate::pacing::{Arrival, Change, Pacer};
use crate::program::{Op, ITERATION, USER};
use crate::record::Moments;
use crate::schedule::exponential;
use crate::user::{Doing, Part, Transaction, User};

/// A script that loops without waiting must wait after this many operations.
const OPS_MOST: u32 = 1000;
/// Shortest time until a user that could not connect tries again.
const BACK_OFF_NS: Nanos = 100_000_000;

impl Worker<'_> {
    /// Carries out the pacer's due change.
    pub(super) fn change(&mut self, change: Change, at_ns: Nanos) {
        match change {
            Change::Come(user) => self.come(user, at_ns),
            Change::Leave(user) => self.leave_soon(user),
            Change::Arrive => self.arrive(at_ns),
        }
    }

    /// A user of the closed model arrives: a new one, one that left before, or one that was about to leave.
    fn come(&mut self, user: u32, at_ns: Nanos) {
        if user as usize == self.users.len() {
            let kind = self.kind_of(self.seat.global(u64::from(user)));
            self.new_user(kind);
        }
        if self.users[user as usize].doing == Doing::Away {
            self.enter(user, at_ns, 0);
        } else {
            self.users[user as usize].leaving = false;
        }
    }

    /// A user of the closed model must leave when its iteration has ended.
    fn leave_soon(&mut self, user: u32) {
        let this = &mut self.users[user as usize];
        this.leaving = this.doing != Doing::Away;
        // A user that waits for the load to be switched on has nothing to finish.
        if this.doing == Doing::Held {
            this.enter(Part::End);
            self.held.retain(|&held| held != user);
            self.go_on(user, self.now_ns);
        }
    }

    /// An iteration of the open model is due. A free user of its kind takes it, or a new user, or one that changes its kind. Otherwise
    /// the arrival waits.
    fn arrive(&mut self, at_ns: Nanos) {
        let kind = self.kind_of(self.seat.global(self.arrived));
        self.arrived += 1;
        let Pacer::Open(open) = &mut self.pacer else { return };
        if let Some(user) = self.free[usize::from(kind)].pop() {
            self.begin_iteration(user, at_ns, 0);
        } else if self.users.len() < open.users_max {
            let user = self.new_user(kind);
            self.enter(user, at_ns, 0);
        } else if let Some(user) = self.away.pop() {
            self.users[user as usize].kind = kind;
            self.enter(user, at_ns, 0);
        } else if let Some(user) = self.free.iter_mut().find_map(Vec::pop) {
            self.change_kind(user, Arrival { kind, at_ns });
            self.advance(user);
        } else {
            open.waiting.push_back(Arrival { kind, at_ns });
        }
    }

    /// A user leaves through its end steps, and returns as a user of another kind.
    fn change_kind(&mut self, user: u32, to: Arrival) {
        let this = &mut self.users[user as usize];
        this.next = Some(to);
        this.moments.intended_ns = self.now_ns;
        this.timed = false;
        this.enter(Part::End);
    }

    fn new_user(&mut self, kind: u16) -> u32 {
        let local = self.users.len() as u64;
        let number = self.seat.global(local);
        let seed = (self.shared.seed ^ 0x5851_f42d_4c95_7f2d).wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.users.push(User::new(number, kind, seed));
        local as u32
    }

    /// The kind of the user or arrival with this number, counted over all generators.
    fn kind_of(&self, number: u64) -> u16 {
        kind_of(number, self.program.kinds.iter().map(|kind| kind.weight))
    }

    /// A user starts its script.
    fn enter(&mut self, user: u32, at_ns: Nanos, free_ns: Nanos) {
        self.prepare(user, at_ns, free_ns);
        self.advance(user);
    }

    fn prepare(&mut self, user: u32, at_ns: Nanos, free_ns: Nanos) {
        self.recorder.open.users += 1;
        let kind = &self.program.kinds[usize::from(self.users[user as usize].kind)];
        let this = &mut self.users[user as usize];
        this.leaving = false;
        this.rests_until_ns = 0;
        this.iteration = 0;
        this.iteration_due_ns = at_ns;
        this.personal = None;
        this.transactions.clear();
        this.enter(Part::Init);
        if self.program.variables {
            this.set(USER, this.number.to_string().into());
            this.set(ITERATION, "0".into());
            for (variable, value) in &kind.initial {
                this.set(*variable, value.clone());
            }
        }
        self.due_at(user, at_ns, free_ns);
    }

    /// The user's next request is due at `at_ns`. The user was not free to send it before `free_ns`.
    fn due_at(&mut self, user: u32, at_ns: Nanos, free_ns: Nanos) {
        let this = &mut self.users[user as usize];
        this.epoch = this.epoch.wrapping_add(1);
        this.moments.intended_ns = at_ns;
        this.free_ns = free_ns;
        this.timed = true;
    }

    /// The event that a user waited for has happened.
    pub(super) fn go_on(&mut self, user: u32, at_ns: Nanos) {
        let this = &mut self.users[user as usize];
        this.epoch = this.epoch.wrapping_add(1);
        if this.doing == Doing::Held {
            // A switch has no precise intended time.
            this.moments.intended_ns = at_ns;
            this.timed = false;
        }
        self.advance(user);
    }

    /// Carries out operations until one must wait.
    pub(super) fn advance(&mut self, user: u32) {
        for _ in 0..OPS_MOST {
            if self.closing_ns.is_some() && self.users[user as usize].part != Part::End {
                self.users[user as usize].transactions.clear();
                self.users[user as usize].enter(Part::End);
            }
            let this = &mut self.users[user as usize];
            let Some(&op) = this.ops(&self.program.kinds[usize::from(this.kind)]).get(this.at as usize) else {
                if self.end_part(user) {
                    return;
                }
                continue;
            };
            this.at += 1;
            if self.carry_out(user, op) {
                return;
            }
        }
        self.wait_until(user, self.now_ns + 1_000_000);
    }

    /// Carries out one operation. Returns whether it must wait.
    fn carry_out(&mut self, user: u32, op: Op) -> bool {
        let this = &mut self.users[user as usize];
        match op {
            Op::Request(_) | Op::Compress(_) | Op::Begin { .. } | Op::Feed(_) if this.skips => {}
            Op::Request(_) | Op::Compress(_) if this.rests_until_ns > self.now_ns => {
                // The same operation follows.
                this.at -= 1;
                let due_ns = this.rests_until_ns;
                self.wait_until(user, due_ns);
                return true;
            }
            Op::Request(request) => {
                if self.intensity < 1.0 && self.is_held(user) {
                    self.hold(user);
                } else {
                    self.request(user, request);
                }
                return true;
            }
            Op::Think(think) => {
                let think_ns = draw(&self.program.thinks[think as usize], &mut this.chance);
                this.transactions.iter_mut().for_each(|open| open.thought_ns += think_ns);
                let due_ns = this.moments.intended_ns.saturating_add(think_ns);
                self.wait_until(user, due_ns);
                return true;
            }
            Op::Compress(compression) => {
                self.compress(user, compression);
                return true;
            }
            Op::Repeat { times: 0, to } | Op::Jump { to } => this.at = to,
            Op::Repeat { times, .. } => this.loops.push(times),
            Op::Again { to } => match this.loops.last_mut() {
                Some(left) if *left > 1 => {
                    *left -= 1;
                    this.at = to;
                }
                _ => drop(this.loops.pop()),
            },
            Op::Choose(choice) => {
                let drawn = this.chance.f64();
                let branches = &self.program.choices[choice as usize].branches;
                let taken = branches.iter().find(|(sum, _)| drawn < *sum).or(branches.last());
                this.at = taken.map_or(this.at, |(_, to)| *to);
            }
            Op::Begin { label } => {
                let moments = Moments { intended_ns: this.moments.intended_ns, sent_ns: self.now_ns, ..Moments::default() };
                this.transactions.push(Transaction { label, moments, thought_ns: 0, good: true });
            }
            Op::End { .. } => self.end_transaction(user),
            Op::Feed(feeder) => return self.feed(user, feeder),
        }
        false
    }

    fn end_transaction(&mut self, user: u32) {
        let this = &mut self.users[user as usize];
        if let Some(mut ended) = this.transactions.pop() {
            // Exclude think time, as if the transaction had begun that much later.
            ended.moments.intended_ns += ended.thought_ns;
            ended.moments.sent_ns += ended.thought_ns;
            self.recorder.timed(ended.label, ended.moments, self.now_ns.max(ended.moments.sent_ns), ended.good);
        }
    }

    /// Takes the next row. Returns true if there is none and the user leaves.
    fn feed(&mut self, user: u32, feeder: u32) -> bool {
        let this = &mut self.users[user as usize];
        let table = self.program.feeders[feeder as usize].clone();
        let mut places = std::mem::take(&mut this.personal.get_or_insert_default().places);
        let row = table.next(feeder, &mut places, &mut this.chance);
        if let Some(row) = row {
            for (value, &variable) in row.iter().zip(&table.variables) {
                this.set(variable, value.clone());
            }
        } else {
            this.leaving = true;
            this.transactions.clear();
            this.enter(Part::End);
        }
        this.personal.get_or_insert_default().places = places;
        false
    }

    /// A part of the script has ended. Returns whether the user waits now.
    fn end_part(&mut self, user: u32) -> bool {
        let this = &mut self.users[user as usize];
        match this.part {
            Part::Init if this.leaving => this.enter(Part::End),
            Part::Init if this.skips => this.enter(Part::Init),
            Part::Init => this.enter(Part::Actions),
            Part::Actions => return self.end_iteration(user),
            Part::End => {
                self.leave(user);
                return true;
            }
        }
        false
    }

    /// An iteration has ended. The next follows when it is due. Returns whether the user waits.
    fn end_iteration(&mut self, user: u32) -> bool {
        self.recorder.open.iterations += 1;
        if !self.program.source.connections.across_iterations {
            self.close_links_of(user);
        }
        let now_ns = self.now_ns;
        let this = &mut self.users[user as usize];
        this.iteration += 1;
        if self.program.variables {
            let number = this.iteration.to_string().into();
            this.set(ITERATION, number);
        }
        if this.leaving {
            this.enter(Part::End);
            return false;
        }
        match &mut self.pacer {
            Pacer::Closed(closed) => {
                this.enter(Part::Actions);
                let due_ns = closed.every_ns.map(|every_ns| this.iteration_due_ns.saturating_add(every_ns));
                if let Some(due_ns) = due_ns {
                    this.iteration_due_ns = due_ns;
                }
                match due_ns {
                    Some(due_ns) if due_ns > now_ns => {
                        self.wait_until(user, due_ns);
                        return true;
                    }
                    Some(due_ns) => self.due_at(user, due_ns, now_ns),
                    None => {}
                }
                false
            }
            Pacer::Open(open) => {
                match open.waiting.pop_front() {
                    Some(next) if next.kind == this.kind => {
                        this.enter(Part::Actions);
                        self.due_at(user, next.at_ns, now_ns);
                    }
                    Some(next) => self.change_kind(user, next),
                    None => {
                        this.doing = Doing::Free;
                        self.free[usize::from(this.kind)].push(user);
                        return true;
                    }
                }
                false
            }
        }
    }

    fn begin_iteration(&mut self, user: u32, at_ns: Nanos, free_ns: Nanos) {
        self.users[user as usize].enter(Part::Actions);
        self.due_at(user, at_ns, free_ns);
        self.advance(user);
    }

    fn leave(&mut self, user: u32) {
        self.close_links_of(user);
        let this = &mut self.users[user as usize];
        this.epoch = this.epoch.wrapping_add(1);
        this.doing = Doing::Away;
        this.leaving = false;
        this.personal = None;
        self.recorder.open.users -= 1;
        match this.next.take() {
            Some(next) if self.closing_ns.is_none() => {
                this.kind = next.kind;
                self.prepare(user, next.at_ns, self.now_ns);
                self.go_on_soon(user);
            }
            Some(_) => self.recorder.error(None, LoadErrorKind::NotServed, ""),
            None if matches!(self.pacer, Pacer::Open(_)) => self.away.push(user),
            None => {}
        }
    }

    /// The user continues at `at_ns`, when its next request is due.
    fn wait_until(&mut self, user: u32, at_ns: Nanos) {
        self.due_at(user, at_ns, 0);
        let this = &mut self.users[user as usize];
        this.doing = Doing::Waiting;
        self.dues.push(Reverse((at_ns, user, this.epoch)));
    }

    /// Whether the user is outside the share of users that is switched on.
    fn is_held(&self, user: u32) -> bool {
        let Pacer::Closed(_) = self.pacer else { return false };
        let level = self.elapsed_ns().map_or(0.0, |elapsed_ns| self.pacer.level(elapsed_ns));
        self.closing_ns.is_none() && self.users[user as usize].number as f64 >= level * self.intensity
    }

    fn hold(&mut self, user: u32) {
        let this = &mut self.users[user as usize];
        // Repeat the same operation after the load is switched on.
        this.at -= 1;
        this.doing = Doing::Held;
        self.held.push(user);
    }

    /// A step failed, so that the rest of its part cannot be done. The user still makes the pauses of that part, because a service that
    /// fails would otherwise be asked more often than one that works.
    pub(super) fn abandon(&mut self, user: u32, kind: LoadErrorKind) {
        for open in std::mem::take(&mut self.users[user as usize].transactions) {
            self.recorder.failed(open.label, open.moments.intended_ns + open.thought_ns, self.now_ns);
        }
        let rests = match self.users[user as usize].part {
            Part::Init => true,
            // Arrivals of the open model do not wait for a server.
            Part::Actions => sent_nothing(kind) && matches!(self.pacer, Pacer::Closed(_)),
            Part::End => false,
        };
        let this = &mut self.users[user as usize];
        this.moments.intended_ns = self.now_ns;
        this.timed = false;
        this.skips = true;
        if rests {
            this.rests_until_ns = self.now_ns + BACK_OFF_NS;
        }
        self.go_on_soon(user);
    }

    /// The user continues in the loop's next round. This avoids recursion when users fail at once, one after another.
    fn go_on_soon(&mut self, user: u32) {
        let this = &mut self.users[user as usize];
        this.epoch = this.epoch.wrapping_add(1);
        this.doing = Doing::Waiting;
        self.dues.push(Reverse((self.now_ns, user, this.epoch)));
    }

    fn compress(&mut self, user: u32, compression: u32) {
        let this = &mut self.users[user as usize];
        this.doing = Doing::Compressing;
        this.epoch = this.epoch.wrapping_add(1);
        this.moments.sent_ns = self.now_ns;
        this.moments.first_ns = 0;
        let job = Job { thread: self.thread, user, epoch: this.epoch, compression };
        if let Some(pool) = &self.shared.pool {
            pool.submit(job);
        }
    }

    /// A compression that a user waited for has ended.
    pub(super) fn compressed(&mut self, done: Done) {
        let this = &mut self.users[done.job.user as usize];
        if this.epoch != done.job.epoch || this.doing != Doing::Compressing {
            return;
        }
        self.now_ns = self.shared.clock.now();
        let label = self.program.compressions[done.job.compression as usize].label;
        let moments = this.moments;
        this.moments.intended_ns = self.now_ns;
        this.timed = false;
        match done.outcome {
            Ok(()) => {
                self.recorder.timed(label, moments, done.end_ns, true);
                self.advance(done.job.user);
            }
            Err(error) => {
                self.recorder.failed(label, moments.intended_ns, self.now_ns);
                self.recorder.error(Some(label), LoadErrorKind::Compress, &error.to_string());
                self.abandon(done.job.user, LoadErrorKind::Compress);
            }
        }
    }
}

/// Distributes kinds by weight over consecutive numbers, as evenly as possible. Multiples of the golden ratio fill any range
/// evenly, even a short one, so no kind is ever more than a few ahead of its share or behind it.
fn kind_of(number: u64, weights: impl Iterator<Item = f64> + Clone) -> u16 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let (total, count) = weights.clone().fold((0.0, 0), |(sum, count), weight| (sum + weight, count + 1));
    let mut left = (number as f64 * GOLDEN).fract() * total;
    let at = weights.take(count).position(|weight| {
        left -= weight;
        left < 0.0
    });
    at.unwrap_or(count - 1) as u16
}

/// Whether nothing was sent, so that a retry needs an explicit delay.
fn sent_nothing(kind: LoadErrorKind) -> bool {
    use LoadErrorKind as Kind;
    matches!(
        kind,
        Kind::ConnectionRefused
            | Kind::Unreachable
            | Kind::ConnectTimeout
            | Kind::Tls
            | Kind::NoPorts
            | Kind::NoFiles
            | Kind::BadHeader
            | Kind::System
    )
}

/// A random think time.
fn draw(think: &Think, chance: &mut fastrand::Rng) -> Nanos {
    match think {
        Think::ConstantNs(ns) => *ns,
        Think::Uniform { from_ns, to_ns } => chance.u64(*from_ns..=*to_ns),
        Think::Exponential { mean_ns } => (*mean_ns as f64 * exponential(chance)) as Nanos,
        Think::LogNormal { median_ns, sigma } => (*median_ns as f64 * (sigma * normal(chance)).exp()) as Nanos,
        Think::AnyOfNs(values) => values[chance.usize(..values.len())],
    }
}

/// Normally distributed with mean 0 and deviation 1 (Box and Muller).
fn normal(chance: &mut fastrand::Rng) -> f64 {
    (2.0 * exponential(chance)).sqrt() * (std::f64::consts::TAU * chance.f64()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(think: &Think) -> f64 {
        let mut chance = fastrand::Rng::with_seed(3);
        (0..100_000).map(|_| draw(think, &mut chance) as f64).sum::<f64>() / 1e5
    }

    #[test]
    fn kinds_have_their_shares_among_few_and_among_many() {
        for weights in [&[3.0, 1.0][..], &[1.0, 1.0, 1.0], &[0.2, 0.7, 0.1], &[1.0]] {
            let total: f64 = weights.iter().sum();
            let mut counts = vec![0.0; weights.len()];
            for number in 0..10_000 {
                counts[usize::from(kind_of(number, weights.iter().copied()))] += 1.0;
                for (count, weight) in counts.iter().zip(weights) {
                    let share = (number + 1) as f64 * weight / total;
                    assert!((count - share).abs() < 4.0, "{count} of {number} users instead of {share}");
                }
            }
        }
        let first: Vec<u16> = (0..4).map(|number| kind_of(number, [3.0, 1.0].into_iter())).collect();
        assert_eq!(first, [0, 0, 0, 1]);
    }

    #[test]
    fn pauses_have_the_mean_of_their_distribution() {
        for (think, wanted) in [
            (Think::ConstantNs(1_000_000), 1e6),
            (Think::Uniform { from_ns: 500_000, to_ns: 1_500_000 }, 1e6),
            (Think::Exponential { mean_ns: 1_000_000 }, 1e6),
            (Think::LogNormal { median_ns: 1_000_000, sigma: 0.5 }, 1e6 * (0.125_f64).exp()),
            (Think::AnyOfNs(vec![500_000, 1_500_000]), 1e6),
        ] {
            assert!((mean(&think) / wanted - 1.0).abs() < 0.02, "{think:?}: {}", mean(&think));
        }
    }
}
