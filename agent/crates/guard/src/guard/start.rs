//! The start of a guard: checks of its policy, the first settings and hooks, and what a policy says of a hook and its backstop.

use partywall_clock::{self as clock, Nanos};
use partywall_wire::{GuardHook, GuardQueue, GuardStart};

use super::core::{hold, paced};
use crate::error::GuardError;
use crate::place::{Link, Networks, Place, QueueRate, LARGEST};
use crate::plane::{Grant, Plane};
use crate::round::Rounds;

pub(super) const LEAVES_MAX: usize = 65_000;
/// The longest time of a policy: an hour.
pub(super) const TIME_MOST: Nanos = 3_600_000_000_000;
/// The highest rate of a policy, in bit/s or packets/s. The sum of one for each leaf fits in 64 bits.
pub(super) const RATE_MOST: u64 = 200_000_000_000_000;

/// Checks that all numbers of a flattened policy refer to existing objects.
pub(super) fn checked(start: &GuardStart) -> Result<(), GuardError> {
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
pub(super) fn alike(now: &GuardStart, to: &GuardStart) -> Result<(), GuardError> {
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

pub(super) fn load(start: &GuardStart) -> Result<Plane, GuardError> {
    Plane::load(start.leaves.len() + start.hooks.len(), start.hooks.iter().filter(|hook| !hook.rules.is_empty()).count())
}

pub(super) fn places(start: &GuardStart, queue: GuardQueue, networks: &mut Networks) -> Result<Vec<Place>, GuardError> {
    let find = |(at, hook): (usize, &GuardHook)| {
        Place::find(networks, &start.id, queue, hook, &start.leaves[hook.leaf], backstop_of(start, at), None)
    };
    start.hooks.iter().enumerate().map(find).collect()
}

pub(super) fn links(start: &GuardStart, networks: &mut Networks) -> Result<Vec<Option<Link>>, GuardError> {
    let find = |pool: &partywall_wire::GuardPool| pool.link.as_ref().map(|link| Link::find(networks, link, pool.capacity_bps)).transpose();
    start.pools.iter().map(find).collect()
}

/// Writes all settings to memory before the first packet arrives.
pub(super) fn prepare(start: &GuardStart, plane: &Plane, rounds: &mut Rounds, places: &[Place]) -> Result<(), GuardError> {
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

/// Replaces the hooks of an earlier guard, with their guarantees. At places without earlier hooks, a failure leaves nothing.
pub(super) fn put_all(start: &GuardStart, plane: &Plane, rounds: &Rounds, places: &mut [Place]) -> Result<(), GuardError> {
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

pub(super) fn put(at: &mut Place, plane: &Plane, pace: QueueRate) -> Result<(), GuardError> {
    if at.has_queue() {
        at.pace(pace, Some(plane))?;
    }
    at.put(plane)
}

pub(super) fn leaves_of(start: &GuardStart, hook: usize) -> impl Iterator<Item = usize> + '_ {
    let hook = &start.hooks[hook];
    std::iter::once(hook.leaf).chain(hook.rules.iter().map(|rule| rule.leaf))
}

/// The leaf of a hook's backstop. These leaves follow all others.
pub(super) fn backstop_of(start: &GuardStart, hook: usize) -> usize {
    start.leaves.len() + hook
}

/// Joint ceiling of a hook's leaves: the sum of their ceilings, or a total that contains all of them.
pub(super) fn ceiling_bps(start: &GuardStart, hook: usize) -> u64 {
    let sum: u64 = leaves_of(start, hook).map(|leaf| start.leaves[leaf].ceiling_bps).sum();
    shared_totals(start, hook).filter_map(|total| start.totals[total].ceiling_bps).fold(sum, u64::min)
}

pub(super) fn ceiling_pps(start: &GuardStart, hook: usize) -> Option<u64> {
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

pub(super) fn backstop_at_ceiling(start: &GuardStart, hook: usize) -> Grant {
    let bps = ceiling_bps(start, hook);
    let burst_ns = backstop_burst_ns(start, hook, bps);
    Grant { bps, pps: ceiling_pps(start, hook), burst_ns, packet_burst_ns: burst_ns }
}

pub(super) fn backstop_of_all(start: &GuardStart, at: usize, of: &dyn Fn(usize) -> Grant) -> Grant {
    let grants = || leaves_of(start, at).map(of);
    let bps = grants().map(|grant| grant.bps).sum();
    let burst_ns = backstop_burst_ns(start, at, bps);
    Grant { bps, pps: grants().map(|grant| grant.pps).sum(), burst_ns, packet_burst_ns: burst_ns }
}
