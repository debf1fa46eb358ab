//! What a worker thread has done, as time at full intensity. Its [`Pacer`](crate::Pacer) keeps a share of that.

use partywall_clock::Nanos;
use partywall_kernels::PacedBy;

use crate::burst::Burst;
use crate::Full;

/// Counts the pieces of work of one worker thread.
#[derive(Clone, Debug)]
pub(crate) struct Worth {
    by: PacedBy,
    burst: Burst,
    worked_ns: f64,
    timed_ns: f64,
    total_ns: f64,
}

impl Worth {
    /// Nothing has been done yet.
    pub(crate) fn new(by: PacedBy) -> Self {
        Self { by, burst: Burst::default(), worked_ns: 0.0, timed_ns: 0.0, total_ns: 0.0 }
    }

    /// A period of one intensity begins. What was learnt about bursts stays.
    pub(crate) fn begin(&mut self) {
        (self.worked_ns, self.timed_ns, self.total_ns) = (0.0, 0.0, 0.0);
        self.burst.pause();
    }

    /// Adds a piece of work and the active time since the last call. Returns by how much the total of the period grows, in ns.
    ///
    /// The larger of time and work is that of the whole period: of single pieces it would be too large, because both vary.
    pub(crate) fn add(&mut self, full: &Full, work: f64, pressed_ns: Nanos) -> f64 {
        self.worked_ns += work * 1e9 / full.rate;
        self.timed_ns += pressed_ns as f64 / full.pressing;
        let total_ns = match self.by {
            PacedBy::Time => self.total_ns + self.burst.worth(pressed_ns) as f64 / full.pressing,
            PacedBy::Work => self.worked_ns,
            PacedBy::TimeOrWork => self.timed_ns.max(self.worked_ns),
        };
        total_ns - std::mem::replace(&mut self.total_ns, total_ns)
    }

    /// A pause begins.
    pub(crate) fn pause(&mut self) {
        self.burst.pause();
    }

    /// Whether another piece must follow at once: see [`Burst::needs_another`].
    pub(crate) fn needs_another(&self) -> bool {
        self.burst.needs_another()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_counts_by_time_by_work_or_by_the_larger_sum() {
        let full = Full { rate: 10.0, pressing: 0.5 };
        let added = |by, pieces: [(f64, Nanos); 3]| {
            let mut worth = Worth::new(by);
            pieces.map(|(work, pressed_ns)| worth.add(&full, work, pressed_ns).round() as Nanos)
        };
        // A burst into a buffer, then a neighbour that delays: 0.2 s and 0.1 s by work, 0.05 s, 0 and 0.4 s by time.
        let pieces = [(2.0, 25_000_000), (1.0, 0), (0.0, 200_000_000)];
        assert_eq!(added(PacedBy::Time, pieces), [50_000_000, 0, 400_000_000]);
        assert_eq!(added(PacedBy::Work, pieces), [200_000_000, 100_000_000, 0]);
        assert_eq!(added(PacedBy::TimeOrWork, pieces), [200_000_000, 100_000_000, 150_000_000]);
    }
}
