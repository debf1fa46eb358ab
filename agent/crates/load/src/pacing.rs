//! The pacer of one worker: when its users arrive and leave, or when its arrivals are due. All times are nanoseconds since the load
//! began.

use std::collections::VecDeque;

use partywall_clock::Nanos;
use partywall_wire::load::{Pacing, Share};

use crate::schedule::{ArrivalTimes, Levels};

/// A due change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// This user of the worker arrives.
    Come(u32),
    /// This user of the worker leaves.
    Leave(u32),
    /// An iteration begins.
    Arrive,
}

/// Determines when the next request is due.
pub(crate) enum Pacer {
    Closed(Closed),
    Open(Open),
}

pub(crate) struct Closed {
    levels: Levels,
    seat: Seat,
    users: u64,
    next: Option<(Nanos, Change)>,
    pub every_ns: Option<Nanos>,
}

/// A due iteration for a user of some kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub kind: u16,
    /// Due time, as absolute time.
    pub at_ns: Nanos,
}

pub(crate) struct Open {
    levels: Levels,
    times: ArrivalTimes,
    /// Arrivals that found no free user.
    pub waiting: VecDeque<Arrival>,
    pub users_max: usize,
}

/// One worker among all workers of a load, including those of other generators. Shared items are numbered over all workers, and each
/// worker takes every `of`th item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub number: u64,
    pub of: u64,
}

impl Seat {
    /// The seat of a thread of the generator with this share.
    pub(crate) fn new(share: Share, thread: u32, threads: u32) -> Self {
        let number = u64::from(share.number) + u64::from(share.of) * u64::from(thread);
        Self { number, of: u64::from(share.of) * u64::from(threads) }
    }

    /// The global number of this worker's `local`th item.
    pub(crate) fn global(self, local: u64) -> u64 {
        self.number + local * self.of
    }

    /// How many of `total` items belong to this worker.
    pub(crate) fn part_of(self, total: u64) -> u64 {
        (total + self.of - 1 - self.number) / self.of
    }
}

impl Pacer {
    pub(crate) fn new(pacing: &Pacing, seat: Seat, seed: u64) -> Self {
        match pacing {
            Pacing::Closed { stages, every_ns } => {
                let (levels, every_ns) = (Levels::new(stages), *every_ns);
                let mut closed = Closed { levels, seat, users: 0, next: None, every_ns };
                closed.next = closed.after(0);
                Self::Closed(closed)
            }
            Pacing::Open { arrivals, stages, users_max } => {
                let levels = Levels::new(stages);
                // Only workers that may have users take arrivals: if there are fewer users than workers, some have none.
                let takers = Seat { of: seat.of.min(u64::from(*users_max)).max(1), ..seat };
                let times = ArrivalTimes::new(levels.clone(), *arrivals, takers, seed);
                let users_max = seat.part_of(u64::from(*users_max));
                Self::Open(Open { levels, times, waiting: VecDeque::new(), users_max: users_max as usize })
            }
        }
    }

    /// The next due change, and its time.
    #[inline]
    pub(crate) fn next(&self) -> Option<(Nanos, Change)> {
        match self {
            Self::Closed(closed) => closed.next,
            Self::Open(open) => open.times.next().map(|at| (at, Change::Arrive)),
        }
    }

    /// Advances to the next due change.
    pub(crate) fn advance(&mut self) {
        match self {
            Self::Closed(closed) => closed.advance(),
            Self::Open(open) => open.times.advance(),
        }
    }

    /// From `elapsed_ns` on, only this share of arrivals occurs.
    pub(crate) fn switch(&mut self, elapsed_ns: Nanos, intensity: f64) {
        if let Self::Open(open) = self {
            open.times.switch(elapsed_ns, intensity);
        }
    }

    /// From `elapsed_ns` until the end of the last stage, the number of users or arrivals per second is `level`.
    pub(crate) fn set_level(&mut self, elapsed_ns: Nanos, level: f64) {
        match self {
            Self::Closed(closed) => {
                closed.levels = closed.levels.held(elapsed_ns, level);
                closed.next = closed.after(elapsed_ns);
            }
            Self::Open(open) => {
                open.levels = open.levels.held(elapsed_ns, level);
                open.times.set_level(elapsed_ns, level);
            }
        }
    }

    /// End of the last stage.
    pub(crate) fn end_ns(&self) -> Nanos {
        self.levels().end_ns()
    }

    /// Number of users, or arrivals per second, at a time.
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

    /// A user is present while the level is above its number.
    fn after(&self, at_ns: Nanos) -> Option<(Nanos, Change)> {
        let number = |local: u64| self.seat.global(local) as f64;
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
        let seat = Seat::new(Share::default(), thread, threads);
        let mut pacer = Pacer::new(&Pacing::Closed { stages, every_ns: None }, seat, 1);
        std::iter::from_fn(move || pacer.next().inspect(|_| pacer.advance())).map(|(at, change)| (at / SECOND, change)).collect()
    }

    #[test]
    fn users_arrive_and_leave_with_the_level_and_threads_share_them() {
        use Change::{Come, Leave};
        assert_eq!(changes(0, 1), [(0, Come(0)), (1, Come(1)), (2, Come(2)), (5, Leave(2)), (6, Leave(1)), (7, Leave(0))]);
        assert_eq!(changes(0, 2), [(0, Come(0)), (2, Come(1)), (5, Leave(1)), (7, Leave(0))]);
        assert_eq!(changes(1, 2), [(1, Come(0)), (6, Leave(0))]);
    }

    #[test]
    fn users_arrive_or_leave_at_once_when_a_level_is_set() {
        use Change::{Come, Leave};
        let stages = vec![Stage { to: 2.0, for_ns: 0 }, Stage { to: 2.0, for_ns: 9 * SECOND }];
        let mut pacer = Pacer::new(&Pacing::Closed { stages, every_ns: None }, Seat::new(Share::default(), 0, 1), 1);
        let due = |pacer: &mut Pacer, count: usize| {
            std::iter::from_fn(|| pacer.next().inspect(|_| pacer.advance()))
                .take(count)
                .map(|(at, change)| (at / SECOND, change))
                .collect::<Vec<_>>()
        };
        assert_eq!(due(&mut pacer, 2), [(0, Come(0)), (0, Come(1))]);
        pacer.set_level(3 * SECOND, 4.0);
        assert_eq!(due(&mut pacer, 2), [(3, Come(2)), (3, Come(3))]);
        pacer.set_level(5 * SECOND, 1.0);
        assert_eq!(due(&mut pacer, 4), [(5, Leave(3)), (5, Leave(2)), (5, Leave(1)), (9, Leave(0))]);
        assert_eq!(pacer.end_ns(), 9 * SECOND);
    }

    fn seats(generators: u32, threads: u32) -> Vec<Seat> {
        let of_one = |number| (0..threads).map(move |thread| Seat::new(Share { number, of: generators }, thread, threads));
        (0..generators).flat_map(of_one).collect()
    }

    #[test]
    fn every_worker_of_every_generator_has_its_own_seat() {
        let mut numbers: Vec<_> = seats(3, 4).iter().map(|seat| (seat.number, seat.of)).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..12).map(|number| (number, 12)).collect::<Vec<_>>());
    }

    /// Maximum users, and arrival times in ms, of each worker.
    fn shared(users_max: u32, seats: &[Seat]) -> Vec<(usize, Vec<u64>)> {
        let stages = vec![Stage { to: 10.0, for_ns: 0 }, Stage { to: 10.0, for_ns: SECOND }];
        let pacing = Pacing::Open { arrivals: partywall_wire::load::Arrivals::Constant, stages, users_max };
        let of_one = |seat: &Seat| {
            let mut pacer = Pacer::new(&pacing, *seat, 1);
            let most = if let Pacer::Open(open) = &pacer { open.users_max } else { 0 };
            let times = std::iter::from_fn(|| pacer.next().inspect(|_| pacer.advance())).map(|(at, _)| at / 1_000_000).collect();
            (most, times)
        };
        seats.iter().map(of_one).collect()
    }

    #[test]
    fn users_of_the_open_model_are_shared_without_loss() {
        let most = |users_max, seats: &[Seat]| shared(users_max, seats).into_iter().map(|(most, _)| most).collect::<Vec<_>>();
        assert_eq!(most(5, &seats(1, 3)), [2, 2, 1]);
        assert_eq!(most(3, &seats(5, 1)), [1, 1, 1, 0, 0]);
    }

    #[test]
    fn arrivals_of_all_generators_are_evenly_spaced_and_none_goes_to_a_worker_without_users() {
        for (users_max, generators, threads) in [(100, 4, 1), (100, 2, 2), (2, 1, 4), (3, 3, 2), (1, 2, 1)] {
            let shares = shared(users_max, &seats(generators, threads));
            let mut times: Vec<_> = shares.iter().flat_map(|(_, times)| times.clone()).collect();
            times.sort_unstable();
            assert_eq!(times, (0..=10).map(|n| n * 100).collect::<Vec<_>>(), "{users_max} users, {generators} x {threads}");
            assert!(shares.iter().all(|(most, times)| *most > 0 || times.is_empty()), "{shares:?}");
        }
    }
}
