//! The order of records from all hops: by time, and if clocks are known only within a bound, by the path, so that a packet is seen
//! at each hop after the previous one. There is one order for each direction, because the hops are reversed on the way back.

use partywall_alignment::{Merge, Seen};

/// Sorts records of CPUs and of remote hops.
#[derive(Debug)]
pub(crate) struct Order {
    /// Forward and backward.
    pub(crate) ways: [Merge; 2],
    cpus: usize,
    /// By hop; None for those of this host, whose clock is the reference.
    bounds_ns: Vec<Option<u64>>,
    /// By hop: number of remote hops before it. Local hops with the same number are shifted equally.
    stretch: Vec<usize>,
    /// By hop.
    dropped: Vec<u64>,
}

impl Order {
    /// For a list of hops that says which are remote.
    pub(crate) fn new(remote: Vec<bool>, cpus: usize) -> Self {
        let stretch: Vec<usize> = (0..remote.len()).map(|hop| remote[..hop].iter().filter(|&&remote| remote).count()).collect();
        let remotes = remote.iter().filter(|&&remote| remote).count();
        let sources = remotes + cpus * (remotes + 1);
        let dropped = vec![0; remote.len()];
        let bounds_ns = remote.into_iter().map(|remote| remote.then_some(0)).collect();
        Self { ways: [Merge::new(sources), Merge::new(sources)], cpus, bounds_ns, stretch, dropped }
    }

    fn remotes(&self) -> usize {
        self.bounds_ns.iter().flatten().count()
    }

    /// Remote hops come first, then the CPUs, once for each stretch of local hops.
    fn source(&self, cpu: usize, hop: usize) -> usize {
        let stretch = self.stretch[hop];
        match self.bounds_ns[hop] {
            Some(_) => stretch,
            None => self.remotes() + stretch * self.cpus + cpu,
        }
    }

    /// Takes a record seen at `hop` by `cpu`, which is ignored for a remote hop.
    pub(crate) fn push(&mut self, way: usize, cpu: usize, hop: usize, seen: Seen) {
        let source = self.source(cpu, hop);
        if !self.ways[way].push(source, seen) {
            self.dropped[hop] += 1;
        }
    }

    /// By hop: records dropped for lack of space since the last call, because a remote hop did not report its time.
    pub(crate) fn take_dropped(&mut self) -> Vec<u64> {
        self.dropped.iter_mut().map(std::mem::take).collect()
    }

    /// A CPU has reported everything that it saw before `time_ns`.
    pub(crate) fn cpu_reached(&mut self, cpu: usize, time_ns: u64) {
        for stretch in 0..=self.remotes() {
            let source = self.remotes() + stretch * self.cpus + cpu;
            self.ways.iter_mut().for_each(|merge| merge.advance(source, time_ns));
        }
    }

    /// A remote hop has reported everything that it saw before `time_ns`.
    pub(crate) fn hop_reached(&mut self, hop: usize, time_ns: u64) {
        let source = self.source(0, hop);
        self.ways.iter_mut().for_each(|merge| merge.advance(source, time_ns));
    }

    /// Sets the bound on the clock error of a remote hop.
    pub(crate) fn set_bound(&mut self, hop: usize, bound_ns: u64) {
        if self.bounds_ns[hop].replace(bound_ns) == Some(bound_ns) {
            return;
        }
        let forward: Vec<usize> = (0..self.bounds_ns.len()).collect();
        let backward: Vec<usize> = forward.iter().rev().copied().collect();
        for (way, path) in [forward, backward].iter().enumerate() {
            for (hop, behind_ns) in behind(path, &self.bounds_ns) {
                for cpu in 0..self.cpus {
                    let source = self.source(cpu, hop);
                    self.ways[way].set_behind(source, behind_ns);
                }
            }
        }
    }
}

/// By how much each hop's times must be delayed: as far as its clock and the previous one may differ.
fn behind<'a>(path: &'a [usize], bounds_ns: &'a [Option<u64>]) -> impl Iterator<Item = (usize, u64)> + 'a {
    let bound = |hop: usize| bounds_ns[hop].unwrap_or(0);
    path.iter().enumerate().scan(0, move |sum_ns, (at, &hop)| {
        *sum_ns += at.checked_sub(1).map_or(0, |before| bound(path[before]) + bound(hop));
        Some((hop, *sum_ns))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_are_shifted_by_what_clocks_may_be_apart() {
        let bounds = [None, None, Some(30), None, Some(5)];
        let path: Vec<usize> = (0..5).collect();
        assert_eq!(behind(&path, &bounds).map(|(_, ns)| ns).collect::<Vec<_>>(), [0, 0, 30, 60, 65]);
        let back: Vec<usize> = (0..5).rev().collect();
        assert_eq!(behind(&back, &bounds).map(|(_, ns)| ns).collect::<Vec<_>>(), [0, 5, 35, 65, 65]);
    }

    #[test]
    fn local_hops_on_either_side_of_a_remote_one_are_sources_of_their_own() {
        let order = Order::new(vec![false, true, false, false], 2);
        let sources: Vec<usize> = (0..4).map(|hop| order.source(1, hop)).collect();
        assert_eq!(sources, [2, 0, 4, 4]);
    }
}
