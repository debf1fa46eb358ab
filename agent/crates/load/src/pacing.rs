//! The pacer of one worker: when its users come and leave, or when its arrivals are due. All times are nanoseconds since the load
//! began. Deliberately not here: users themselves.

use std::collections::VecDeque;

use partywall_clock::Nanos;
use partywall_wire::load::Pacing;

use crate::schedule::{ArrivalTimes, Levels};

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// This user of the worker comes.
    Come(u32),
    /// This user of the worker leaves.
    Leave(u32),
    /// An iteration is to begin.
    Arrive,
}

/// Who decides when the next request is due.
pub(crate) enum Pacer {
    Closed(Closed),
    Open(Open),
}

pub(crate) struct Closed {
    levels: Levels,
    thread: u64,
    threads: u64,
    users: u64,
    next: Option<(Nanos, Change)>,
    pub every_ns: Option<Nanos>,
}

pub(crate) struct Open {
    levels: Levels,
    times: ArrivalTimes,
    /// Arrivals that found no free user, by when they were due in absolute time.
    pub waiting: VecDeque<Nanos>,
    pub users_max: usize,
}

impl Pacer {
    pub(crate) fn new(pacing: &Pacing, thread: u32, threads: u32, seed: u64) -> Self {
        match pacing {
            Pacing::Closed { stages, every_ns } => {
                let (levels, every_ns) = (Levels::new(stages), *every_ns);
                let (thread, threads) = (u64::from(thread), u64::from(threads));
                let mut closed = Closed { levels, thread, threads, users: 0, next: None, every_ns };
                closed.next = closed.after(0);
                Self::Closed(closed)
            }
            Pacing::Open { arrivals, stages, users_max } => {
                let levels = Levels::new(stages);
                let times = ArrivalTimes::new(levels.clone(), *arrivals, thread, threads, seed);
                let users_max = (users_max + threads - 1 - thread) / threads;
                Self::Open(Open { levels, times, waiting: VecDeque::new(), users_max: users_max as usize })
            }
        }
    }

    /// What is due next, and when.
    #[inline]
    pub(crate) fn next(&self) -> Option<(Nanos, Change)> {
        match self {
            Self::Closed(closed) => closed.next,
            Self::Open(open) => open.times.next().map(|at| (at, Change::Arrive)),
        }
    }

    /// Goes on to what is due after.
    pub(crate) fn advance(&mut self) {
        match self {
            Self::Closed(closed) => closed.advance(),
            Self::Open(open) => open.times.advance(),
        }
    }

    /// From `elapsed_ns` on only this share of arrivals comes.
    pub(crate) fn switch(&mut self, elapsed_ns: Nanos, intensity: f64) {
        if let Self::Open(open) = self {
            open.times.switch(elapsed_ns, intensity);
        }
    }

    /// When the last stage is over.
    pub(crate) fn end_ns(&self) -> Nanos {
        self.levels().end_ns()
    }

    /// Users, or arrivals a second, at a time.
    pub(crate) fn level(&self, elapsed_ns: Nanos) -> f64 {
        self.levels().at(elapsed_ns)
    }

    pub(crate) fn waiting(&self) -> usize {
        match self {
            Self::Closed(_) => 0,
            Self::Open(open) => open.waiting.len(),
        }
    }

    fn levels(&self) -> &Levels {
        match self {
            Self::Closed(closed) => &closed.levels,
            Self::Open(open) => &open.levels,
        }
    }
}

impl Closed {
    fn advance(&mut self) {
        let Some((at_ns, change)) = self.next else { return };
        match change {
            Change::Leave(_) => self.users -= 1,
            Change::Come(_) | Change::Arrive => self.users += 1,
        }
        self.next = self.after(at_ns);
    }

    /// Users are numbered over all threads, and a user is there while the level is above its number.
    fn after(&self, at_ns: Nanos) -> Option<(Nanos, Change)> {
        let number = |local: u64| (self.thread + local * self.threads) as f64;
        let comes = self.levels.comes(at_ns, number(self.users)).map(|at| (at, Change::Come(self.users as u32)));
        let leave = |last: u64| (self.levels.leaves(at_ns, number(last)), Change::Leave(last as u32));
        let leaves = self.users.checked_sub(1).map(leave);
        match (comes, leaves) {
            (Some(comes), Some(leaves)) => Some(if comes.0 <= leaves.0 { comes } else { leaves }),
            (comes, leaves) => comes.or(leaves),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_wire::load::Stage;

    const SECOND: u64 = 1_000_000_000;

    fn changes(thread: u32, threads: u32) -> Vec<(u64, Change)> {
        let stages = vec![Stage { to: 3.0, for_ns: 3 * SECOND }, Stage { to: 3.0, for_ns: SECOND }, Stage { to: 0.0, for_ns: 3 * SECOND }];
        let mut pacer = Pacer::new(&Pacing::Closed { stages, every_ns: None }, thread, threads, 1);
        std::iter::from_fn(move || pacer.next().inspect(|_| pacer.advance())).map(|(at, change)| (at / SECOND, change)).collect()
    }

    #[test]
    fn users_come_and_leave_with_the_level_and_threads_share_them() {
        use Change::{Come, Leave};
        assert_eq!(changes(0, 1), [(0, Come(0)), (1, Come(1)), (2, Come(2)), (5, Leave(2)), (6, Leave(1)), (7, Leave(0))]);
        assert_eq!(changes(0, 2), [(0, Come(0)), (2, Come(1)), (5, Leave(1)), (7, Leave(0))]);
        assert_eq!(changes(1, 2), [(1, Come(0)), (6, Leave(0))]);
    }

    #[test]
    fn users_of_the_open_model_are_shared_without_losing_any() {
        let most = |thread| match Pacer::new(
            &Pacing::Open { arrivals: partywall_wire::load::Arrivals::Constant, stages: vec![Stage { to: 1.0, for_ns: 1 }], users_max: 5 },
            thread,
            3,
            1,
        ) {
            Pacer::Open(open) => open.users_max,
            Pacer::Closed(_) => 0,
        };
        assert_eq!([most(0), most(1), most(2)], [2, 2, 1]);
    }
}
