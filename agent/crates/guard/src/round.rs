//! One round of the loop: counters in, grants out. Touches the data plane's memory and nothing else, so that it can be timed
//! and tested without a network.

use partywall_allocation::{allocate, by_use, Claim, Seen, Want};
use partywall_clock::Nanos;
use partywall_wire::{GuardLeaf, GuardStart};

use crate::plane::{Counters, Grant, Plane};

const SECOND: u128 = 1_000_000_000;
/// What an idle leaf keeps, so that its first packets pass and its demand is seen: a thousandth of its guarantee.
const TRICKLE_PART: u64 = 1000;
const TRICKLE_BPS: u64 = 64_000;
/// Taken for the size of packets while none was seen.
const PACKET_BITS: u64 = 12_000;

/// Rates of one leaf in one period.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    offered_bps: u64,
    passed_bps: u64,
    offered_pps: u64,
    elastic: bool,
}

/// The state that rounds pass on: what was counted, what is wanted, what was granted.
pub struct Rounds {
    leaves: Vec<GuardLeaf>,
    pools: Vec<(u64, Vec<usize>)>,
    totals: Vec<(Option<u64>, Option<u64>, Vec<usize>)>,
    before: Vec<Counters>,
    wants: Vec<Want>,
    packet_bits: Vec<u64>,
    held: Vec<bool>,
    grants: Vec<Grant>,
    at_ns: Nanos,
}

impl Rounds {
    /// Nothing is known of demand yet: everybody is taken to want all he may have.
    #[must_use]
    pub fn new(start: &GuardStart, now: Nanos) -> Self {
        let of = |pick: &dyn Fn(&GuardLeaf) -> bool| (0..start.leaves.len()).filter(|&at| pick(&start.leaves[at])).collect::<Vec<_>>();
        let members = |group: usize| of(&|leaf: &GuardLeaf| leaf.total == Some(group));
        let mut rounds = Self {
            leaves: start.leaves.clone(),
            pools: start.pools.iter().enumerate().map(|(at, pool)| (pool.capacity_bps, of(&|leaf| leaf.pool == at))).collect(),
            totals: start.totals.iter().enumerate().map(|(at, total)| (total.ceiling_bps, total.ceiling_pps, members(at))).collect(),
            before: vec![Counters::default(); start.leaves.len()],
            wants: vec![Want::default(); start.leaves.len()],
            packet_bits: vec![PACKET_BITS; start.leaves.len()],
            held: vec![false; start.leaves.len()],
            grants: Vec::new(),
            at_ns: now,
        };
        let unknown = vec![Rates::default(); start.leaves.len()];
        rounds.grants = rounds.decide(&unknown, &vec![u64::MAX; start.leaves.len()]);
        rounds
    }

    /// What each leaf is granted.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Says that a queue holds back what a leaf may not pass, so that its senders wait and offer no more than passes.
    pub fn held(&mut self, leaf: usize) {
        self.held[leaf] = true;
    }

    /// What a leaf is granted when nobody decides any more.
    #[must_use]
    pub fn fallback(&self, leaf: usize) -> Grant {
        let promised = &self.leaves[leaf];
        Grant { bps: promised.guarantee_bps.max(TRICKLE_BPS), pps: promised.ceiling_pps, burst_ns: promised.burst_ns }
    }

    /// Reads what was counted, decides and writes the grants that changed.
    pub fn run(&mut self, plane: &Plane, now: Nanos) {
        let rates = self.read(plane, now.saturating_sub(self.at_ns).max(1));
        self.at_ns = now;
        let wants: Vec<u64> = (0..self.leaves.len()).map(|at| self.want(at, rates[at])).collect();
        let grants = self.decide(&rates, &wants);
        for (at, (new, old)) in grants.iter().zip(&self.grants).enumerate() {
            if new != old {
                plane.grant(at, *new);
            }
        }
        self.grants = grants;
    }

    fn read(&mut self, plane: &Plane, elapsed: Nanos) -> Vec<Rates> {
        let per_second = |count: u64| (u128::from(count) * SECOND / u128::from(elapsed)) as u64;
        let one = |(at, (before, &held)): (usize, (&mut Counters, &bool))| {
            let now = plane.counters(at);
            let passed = now.passed_bytes - before.passed_bytes;
            let offered = passed + now.dropped_bytes - before.dropped_bytes;
            let packets = now.passed_packets + now.dropped_packets - before.passed_packets - before.dropped_packets;
            let elastic = held || now.tcp_bytes - before.tcp_bytes > passed / 2;
            *before = now;
            Rates { offered_bps: per_second(offered * 8), passed_bps: per_second(passed * 8), offered_pps: per_second(packets), elastic }
        };
        self.before.iter_mut().zip(&self.held).enumerate().map(one).collect()
    }

    fn want(&mut self, at: usize, rates: Rates) -> u64 {
        if let Some(bits) = rates.offered_bps.checked_div(rates.offered_pps) {
            self.packet_bits[at] = bits.max(1);
        }
        let granted = self.grants[at].bps;
        self.wants[at].update(Seen { offered: rates.offered_bps, passed: rates.passed_bps, granted, elastic: rates.elastic })
    }

    /// Packets first, for who may send few packets can use few bits: what he can't use is for others.
    fn decide(&self, rates: &[Rates], wants: &[u64]) -> Vec<Grant> {
        let packets = self.packets(rates);
        let mut claims: Vec<Claim> = (0..self.leaves.len()).map(|at| self.claim(at, wants[at], packets[at])).collect();
        for (ceiling, _, members) in &self.totals {
            if let Some(ceiling) = ceiling {
                cap(*ceiling, members, &mut claims);
            }
        }
        let mut bits = vec![0; self.leaves.len()];
        for (capacity, members) in &self.pools {
            let of_pool: Vec<Claim> = members.iter().map(|&at| claims[at]).collect();
            members.iter().zip(allocate(*capacity, &of_pool)).for_each(|(&at, grant)| bits[at] = grant);
        }
        let grant = |at: usize| Grant { bps: bits[at], pps: packets[at], burst_ns: self.leaves[at].burst_ns };
        (0..self.leaves.len()).map(grant).collect()
    }

    /// The paper's second step: a tenant's packets/s go to its leaves by the share each has of its bandwidth.
    fn packets(&self, rates: &[Rates]) -> Vec<Option<u64>> {
        let mut packets: Vec<Option<u64>> = self.leaves.iter().map(|leaf| leaf.ceiling_pps).collect();
        for (_, ceiling, members) in &self.totals {
            let Some(ceiling) = ceiling else { continue };
            let used: Vec<u64> = members.iter().map(|&at| rates[at].offered_bps).collect();
            for (&at, part) in members.iter().zip(by_use(*ceiling, &used)) {
                packets[at] = Some(packets[at].map_or(part, |own| own.min(part)));
            }
        }
        packets
    }

    fn claim(&self, at: usize, want: u64, packets: Option<u64>) -> Claim {
        let leaf = &self.leaves[at];
        let usable = packets.map_or(u64::MAX, |pps| pps.saturating_mul(self.packet_bits[at]));
        let trickle = (leaf.guarantee_bps / TRICKLE_PART).max(TRICKLE_BPS);
        let demand = want.min(usable).max(trickle);
        Claim { priority: leaf.priority, guarantee: leaf.guarantee_bps, ceiling: leaf.ceiling_bps, demand }
    }
}

/// Lowers the ceilings of a tenant's leaves so that together they stay below its own.
fn cap(ceiling: u64, members: &[usize], claims: &mut [Claim]) {
    let own: Vec<Claim> = members.iter().map(|&at| claims[at]).collect();
    for (&at, part) in members.iter().zip(allocate(ceiling, &own)) {
        claims[at].ceiling = part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_wire::{GuardPool, GuardTotal};

    fn leaf(name: &str, priority: u32, guarantee: u64, pps: Option<u64>, total: Option<usize>) -> GuardLeaf {
        GuardLeaf {
            name: name.into(),
            pool: 0,
            total,
            priority,
            guarantee_bps: guarantee,
            ceiling_bps: 1_000_000_000,
            ceiling_pps: pps,
            burst_ns: 1,
        }
    }

    fn start(leaves: Vec<GuardLeaf>, totals: Vec<GuardTotal>) -> GuardStart {
        GuardStart {
            id: "g".into(),
            pools: vec![GuardPool { name: "nic".into(), capacity_bps: 1_000_000_000 }],
            totals,
            leaves,
            hooks: vec![],
            period_ns: 50_000_000,
            report_ns: 1_000_000_000,
            check_ns: 1_000_000_000,
            fallback_after_ns: None,
        }
    }

    fn offered(bps: u64, packet_bits: u64) -> Rates {
        Rates { offered_bps: bps, passed_bps: bps, offered_pps: bps / packet_bits, elastic: false }
    }

    fn decided(rounds: &mut Rounds, rates: &[Rates]) -> Vec<u64> {
        let wants: Vec<u64> = rates.iter().enumerate().map(|(at, &rate)| rounds.want(at, rate)).collect();
        rounds.decide(rates, &wants).iter().map(|grant| grant.bps).collect()
    }

    #[test]
    fn before_anything_is_known_everybody_has_his_guarantee() {
        let leaves =
            vec![leaf("a", 1, 150_000_000, None, None), leaf("b", 2, 700_000_000, None, None), leaf("c", 1, 150_000_000, None, None)];
        let rounds = Rounds::new(&start(leaves, vec![]), 0);
        assert_eq!(rounds.grants().iter().map(|grant| grant.bps).collect::<Vec<_>>(), [150_000_000, 700_000_000, 150_000_000]);
    }

    #[test]
    fn bits_that_a_limit_of_packets_makes_useless_are_lent() {
        let leaves = vec![leaf("small", 1, 150_000_000, Some(20_000), None), leaf("large", 2, 700_000_000, None, None)];
        let mut rounds = Rounds::new(&start(leaves, vec![]), 0);
        let grants = decided(&mut rounds, &[offered(50_000_000, 500), offered(980_000_000, 12_000)]);
        assert_eq!(grants[0] + grants[1], 1_000_000_000);
        assert!(grants[1] >= 980_000_000, "{grants:?}");
    }

    #[test]
    fn a_tenants_totals_bind_all_of_its_vifs_together() {
        let total = GuardTotal { name: "vm".into(), ceiling_bps: Some(300_000_000), ceiling_pps: Some(30_000) };
        let mine = |name: &str| leaf(name, 1, 0, None, Some(0));
        let mut rounds = Rounds::new(&start(vec![mine("eth0"), mine("eth1"), leaf("other", 1, 0, None, None)], vec![total]), 0);
        let rates = [offered(400_000_000, 12_000), offered(100_000_000, 12_000), offered(1_000_000_000, 12_000)];
        let grants = decided(&mut rounds, &rates);
        assert_eq!(grants[0] + grants[1], 300_000_000);
        assert_eq!(grants[2], 700_000_000);
        let packets = rounds.packets(&rates);
        assert!(packets[0].unwrap() > packets[1].unwrap() && packets[0].unwrap() + packets[1].unwrap() <= 30_000);
        assert_eq!(packets[2], None);
    }

    #[test]
    fn an_idle_promise_is_lent_but_for_a_trickle() {
        let mut rounds = Rounds::new(&start(vec![leaf("idle", 2, 700_000_000, None, None), leaf("busy", 1, 0, None, None)], vec![]), 0);
        let grants = decided(&mut rounds, &[offered(0, 1), offered(2_000_000_000, 12_000)]);
        assert_eq!(grants, [700_000, 999_300_000]);
    }
}
