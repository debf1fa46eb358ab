use partywall_wire::GuardGoal;

use proptest::prelude::*;

use super::*;

fn leaf(name: &str, priority: u32, guarantee: u64, pps: Option<u64>, totals: &[usize]) -> GuardLeaf {
    GuardLeaf {
        name: name.into(),
        pool: 0,
        totals: totals.to_vec(),
        priority,
        guarantee_bps: guarantee,
        ceiling_bps: 1_000_000_000,
        guarantee_pps: 0,
        ceiling_pps: pps,
        burst_ns: 1,
        hold_ns: 1,
        held_at_source: false,
    }
}

fn total(name: &str, bps: u64, pps: u64) -> GuardTotal {
    GuardTotal { name: name.into(), ceiling_bps: Some(bps), ceiling_pps: Some(pps) }
}

fn start(leaves: Vec<GuardLeaf>, totals: Vec<GuardTotal>) -> GuardStart {
    GuardStart {
        id: "g".into(),
        pools: vec![GuardPool { name: "nic".into(), capacity_bps: 1_000_000_000, capacity_pps: None, link: None }],
        totals,
        leaves,
        hooks: vec![],
        goals: vec![],
        period_ns: 50_000_000,
        report_ns: 1_000_000_000,
        check_ns: 1_000_000_000,
        fallback_after_ns: None,
        queue: None,
        demand: GuardDemand::default(),
        division: GuardDivision::default(),
        transient: false,
    }
}

fn offered(bps: u64, packet_bits: u64) -> Rates {
    Rates { offered_bps: bps, passed_bps: bps, offered_pps: bps / packet_bits, ..Rates::default() }
}

fn granted(rounds: &mut Rounds, rates: &[Rates]) -> Vec<Grant> {
    rounds.wants = rates.iter().enumerate().map(|(at, &rate)| rounds.want(at, rate)).collect();
    rounds.decide()
}

fn decided(rounds: &mut Rounds, rates: &[Rates]) -> Vec<u64> {
    granted(rounds, rates).iter().map(|grant| grant.bps).collect()
}

#[test]
fn every_leaf_has_its_guarantee_before_demand_is_known() {
    let leaves = vec![leaf("a", 1, 150_000_000, None, &[]), leaf("b", 2, 700_000_000, None, &[]), leaf("c", 1, 150_000_000, None, &[])];
    let rounds = Rounds::new(&start(leaves, vec![]), GuardQueue::Tbf, 0);
    assert_eq!(rounds.grants().iter().map(|grant| grant.bps).collect::<Vec<_>>(), [150_000_000, 700_000_000, 150_000_000]);
}

#[test]
fn the_published_division_reserves_the_guarantee_of_an_idle_leaf_and_ours_lends_it() {
    let leaves = || vec![leaf("a", 1, 150_000_000, None, &[]), leaf("b", 2, 700_000_000, None, &[]), leaf("c", 1, 150_000_000, None, &[])];
    let rates = [Rates::default(), Rates::default(), offered(1_000_000_000, 12_000)];
    let decides = |division| {
        let mut rounds = Rounds::new(&GuardStart { division, ..start(leaves(), vec![]) }, GuardQueue::Tbf, 0);
        assert_eq!(rounds.grants().iter().map(|grant| grant.bps).collect::<Vec<_>>(), [150_000_000, 700_000_000, 150_000_000]);
        decided(&mut rounds, &rates)
    };
    assert_eq!(decides(GuardDivision::Published), [150_000_000, 700_000_000, 150_000_000]);
    assert!(decides(GuardDivision::MaxMin)[2] > 990_000_000);
}

#[test]
fn the_published_division_gives_packets_by_use_alone() {
    let leaves = vec![leaf("busy", 1, 0, None, &[0]), leaf("idle", 1, 0, None, &[0])];
    let begin = start(leaves, vec![GuardTotal { name: "vm".into(), ceiling_bps: None, ceiling_pps: Some(8000) }]);
    let mut rounds = Rounds::new(&GuardStart { division: GuardDivision::Published, ..begin }, GuardQueue::Tbf, 0);
    let packets = granted(&mut rounds, &[offered(64_000_000, 8000), Rates::default()]);
    assert_eq!(packets.iter().map(|grant| grant.pps).collect::<Vec<_>>(), [Some(8000), Some(0)]);
}

#[test]
fn a_leaf_that_lost_packets_below_its_guarantee_keeps_all_of_it_for_a_second_even_if_silent() {
    let leaves = vec![leaf("returns", 1, 150_000_000, None, &[]), leaf("borrows", 1, 0, None, &[])];
    let mut rounds = Rounds::new(&start(leaves, vec![]), GuardQueue::Tbf, 0);
    let (silent, flat_out) = (Rates::default(), offered(1_000_000_000, 12_000));
    rounds.grants = granted(&mut rounds, &[silent, flat_out]);
    assert!(rounds.grants[0].bps < 1_000_000);
    rounds.press(&[Rates { offered_bps: 20_000_000, passed_bps: 1_000_000, ..silent }, flat_out]);
    assert_eq!(decided(&mut rounds, &[silent, flat_out]), [150_000_000, 850_000_000]);
    rounds.at_ns = PRESSED_NS;
    assert!(decided(&mut rounds, &[silent, flat_out])[0] < 1_000_000);
}

#[test]
fn an_idle_leaf_keeps_a_burst_of_its_guarantee_and_never_more_than_it_left_unused() {
    let bits = |ns: Nanos, bps: u64| bps * ns / 1_000_000_000;
    // 10 ms at 150 Mb/s, at any granted rate.
    assert!(bits(reserve_ns(150_000_000, 150_000, 10_000_000, 50_000_000), 150_000).abs_diff(1_500_000) < 150);
    // One period at the difference between 145 and 150 Mb/s.
    assert!(bits(reserve_ns(150_000_000, 145_000_000, 10_000_000, 50_000_000), 145_000_000).abs_diff(1_450_000) < 150);
    assert_eq!(reserve_ns(150_000_000, 150_000_000, 7, 50_000_000), 7);
    assert_eq!(reserve_ns(0, 5, 7, 50_000_000), 7);
}

proptest! {
    #[test]
    fn while_grants_are_written_no_leaf_gets_capacity_that_another_still_has(
        rates in proptest::collection::vec((0_u64..1_000_000_000, 0_u64..1_000_000_000), 1..20)
    ) {
        let grant = |bps| Grant { bps, pps: None, burst_ns: 0, packet_burst_ns: 0 };
        let old: Vec<Grant> = rates.iter().map(|&(before, _)| grant(before)).collect();
        let new: Vec<Grant> = rates.iter().map(|&(_, after)| grant(after)).collect();
        let sum = |grants: &[Grant]| grants.iter().map(|grant| grant.bps).sum::<u64>();
        let (mut now, most) = (old.clone(), sum(&old).max(sum(&new)));
        for at in cuts_first(&new, &old) {
            now[at] = new[at];
            prop_assert!(sum(&now) <= most);
        }
        prop_assert_eq!(now, new);
    }
}

#[test]
fn a_fall_back_is_never_above_its_ceiling() {
    let mut small = leaf("small", 1, 0, None, &[]);
    small.ceiling_bps = 10_000;
    let rounds = Rounds::new(&start(vec![small], vec![]), GuardQueue::Tbf, 0);
    assert_eq!(rounds.fallback(0).bps, 10_000);
}

#[test]
fn tcp_may_run_ahead_by_its_largest_packet_and_by_two_whatever_its_goal() {
    let low = GuardLeaf { ceiling_bps: 10_000_000, ..leaf("low", 1, 10_000_000, None, &[]) };
    let mut policy = start(vec![low.clone(), low], vec![]);
    policy.goals = vec![GuardGoal { name: "goal".into(), pool: 0, delay_ns: Some(1), jitter_ns: None, leaves: vec![1] }];
    let rounds = Rounds::new(&policy, GuardQueue::Tbf, 0);
    assert_eq!(rounds.ahead(0)[0].tcp_ns / 1_000_000, 59);
    assert_eq!(rounds.ahead(1)[0].tcp_ns / 1_000_000, 118);
}

#[test]
fn the_longest_wait_is_that_of_a_leafs_share_whatever_it_is_granted_now() {
    let capped = GuardLeaf { ceiling_bps: 5_000_000, hold_ns: 20_000_000, ..leaf("capped", 1, 0, None, &[]) };
    let starved = GuardLeaf { hold_ns: 20_000_000, ..leaf("starved", 0, 0, None, &[]) };
    let leaves = vec![leaf("greedy", 1, 150_000_000, None, &[]), capped, starved];
    let mut rounds = Rounds::new(&start(leaves, vec![]), GuardQueue::Tbf, 0);
    rounds.grants[1].bps = TRICKLE_BPS;
    assert_eq!([0, 1, 2].map(|leaf| rounds.may_wait_ns(leaf) / 1_000_000), [0, 118, 1000]);
}

#[test]
fn a_leaf_whose_packets_wait_is_granted_its_share_though_it_offers_nothing() {
    let ceiling = 5_000_000;
    let capped = GuardLeaf { ceiling_bps: ceiling, ..leaf("capped", 1, 0, None, &[]) };
    let mut rounds = Rounds::new(&start(vec![leaf("greedy", 1, 20_000_000, None, &[]), capped], vec![]), GuardQueue::Tbf, 0);
    let greedy = Rates { elastic: true, ..offered(1_000_000_000, 12_000) };
    let full = Rates { waited_bits: 1_700_000, waiting_bits: 1_500_000, elastic: true, ..Rates::default() };
    for round in 0..20 {
        rounds.grants = granted(&mut rounds, &[greedy, full]);
        assert_eq!(rounds.grants[1].bps, ceiling, "in round {round}");
    }
}

#[test]
fn a_sender_of_datagrams_that_had_no_cpu_for_a_moment_keeps_its_grant_if_its_queue_is_full_again() {
    for (waiting_bits, keeps) in [(0, false), (400_000, true)] {
        let small = GuardLeaf { ceiling_bps: 80_000_000, ..leaf("small", 1, 0, None, &[]) };
        let mut rounds = Rounds::new(&start(vec![leaf("greedy", 1, 0, None, &[]), small], vec![]), GuardQueue::Tbf, 0);
        rounds.queued(1, true);
        let greedy = offered(2_000_000_000, 12_000);
        let held_back = Rates { elastic: true, waiting_bits: 400_000, ..offered(80_000_000, 4800) };
        rounds.grants = granted(&mut rounds, &[greedy, held_back]);
        assert_eq!(rounds.grants[1].bps, 80_000_000);
        let slow = Rates { unused_bps: 60_000_000, elastic: true, waiting_bits, ..offered(20_000_000, 4800) };
        for _ in 0..2 {
            rounds.grants = granted(&mut rounds, &[greedy, slow]);
        }
        assert_eq!(rounds.grants[1].bps == 80_000_000, keeps, "{:?}", rounds.grants[1]);
    }
}

#[test]
fn a_cut_grant_lets_a_queue_drain_before_a_higher_class_borrows() {
    let leaves = vec![leaf("low", 0, 0, None, &[]), leaf("high", 1, 600_000_000, None, &[])];
    let mut rounds = Rounds::new(&start(leaves, vec![]), GuardQueue::Tbf, 0);
    rounds.queued(0, true);
    rounds.grants[0].bps = 1_000_000_000;
    let high = offered(1_000_000_000, 12_000);
    // Of 10 ms, 2 may wait, and are to leave within these and a period of 50 ms.
    rounds.leaves[0].config.hold_ns = 2_000_000;
    let low = Rates { waited_bits: 10_000_000, waiting_bits: 10_000_000, elastic: true, ..Rates::default() };
    let cut = decided(&mut rounds, &[low, high]);
    assert!(cut[0].abs_diff(38_461_538) < 1000 && cut[1] > 961_000_000, "{cut:?}");
    rounds.queued(0, false);
    assert!(decided(&mut rounds, &[low, high])[0] < 1_000_000, "without a queue, only a debt is left");
}

#[test]
fn bits_that_a_packet_limit_makes_unusable_are_lent() {
    let leaves = vec![leaf("small", 1, 150_000_000, Some(20_000), &[]), leaf("large", 2, 700_000_000, None, &[])];
    let mut rounds = Rounds::new(&start(leaves, vec![]), GuardQueue::Tbf, 0);
    let grants = decided(&mut rounds, &[offered(50_000_000, 500), offered(980_000_000, 12_000)]);
    assert_eq!(grants[0] + grants[1], 1_000_000_000);
    assert!(grants[1] >= 980_000_000, "{grants:?}");
}

#[test]
fn a_tenants_totals_bind_all_of_its_vifs_together() {
    let mine = |name: &str| leaf(name, 1, 0, None, &[0]);
    let leaves = vec![mine("eth0"), mine("eth1"), leaf("other", 1, 0, None, &[])];
    let mut rounds = Rounds::new(&start(leaves, vec![total("vm", 300_000_000, 30_000)]), GuardQueue::Tbf, 0);
    let rates = [offered(400_000_000, 12_000), offered(100_000_000, 12_000), offered(1_000_000_000, 12_000)];
    let grants = decided(&mut rounds, &rates);
    assert_eq!(grants[0] + grants[1], 300_000_000);
    assert_eq!(grants[2], 700_000_000);
    let wants: Vec<Demand> = (0..3).map(|at| Demand { pps: ALL, ..rounds.want(at, rates[at]) }).collect();
    let packets = rounds.packets(&wants);
    assert!(packets[0].unwrap() > packets[1].unwrap() && packets[0].unwrap() + packets[1].unwrap() <= 30_000);
    assert_eq!(packets[2], None);
}

#[test]
fn a_tenants_total_binds_its_vifs_on_several_links_and_none_of_it_is_withheld() {
    let on = |name: &str, pool: usize, guarantee: u64, totals: &[usize]| GuardLeaf { pool, ..leaf(name, 1, guarantee, None, totals) };
    let leaves = vec![on("eth0", 0, 0, &[0]), on("eth1", 1, 0, &[0]), on("other", 0, 900_000_000, &[])];
    let mut policy = start(leaves, vec![GuardTotal { ceiling_pps: None, ..total("vm", 600_000_000, 0) }]);
    policy.pools.push(GuardPool { name: "second".into(), capacity_bps: 800_000_000, ..policy.pools[0].clone() });
    let mut rounds = Rounds::new(&policy, GuardQueue::Tbf, 0);
    let all = [offered(1_000_000_000, 12_000); 3];
    // The first link has 100 Mb/s left, so the second carries the rest of the total.
    assert_eq!(decided(&mut rounds, &all), [100_000_000, 500_000_000, 900_000_000]);
    let silent = [all[0], all[1], Rates::default()];
    decided(&mut rounds, &silent);
    assert_eq!(decided(&mut rounds, &silent)[..2], [300_000_000, 300_000_000]);
    rounds.strain(1, 3 * Throttle::MET);
    assert!(rounds.divided_bps(0) == 1_000_000_000 && decided(&mut rounds, &silent)[1] == 300_000_000);
    assert!(rounds.divided_bps(1) < 800_000_000, "a goal on one link reduces what that link divides");
}

#[test]
fn a_leaf_that_is_held_back_gets_all_idle_capacity_at_once_instead_of_doubling_each_period() {
    let leaves = vec![leaf("patient", 1, 60_000_000, None, &[]), leaf("gone", 2, 700_000_000, None, &[])];
    let mut rounds = Rounds::new(&start(leaves, vec![]), GuardQueue::Tbf, 0);
    rounds.grants = granted(&mut rounds, &[offered(900_000_000, 12_000), offered(1_200_000_000, 12_000)]);
    let held_back = Rates { elastic: true, ..offered(rounds.grants[0].bps, 12_000) };
    let silent = [held_back, offered(0, 1)];
    rounds.grants = granted(&mut rounds, &silent);
    assert_eq!(decided(&mut rounds, &silent), [999_300_000, 700_000]);
}

#[test]
fn datagrams_that_their_guest_holds_back_may_want_more_than_they_offer() {
    let Ok(plane) = Plane::load(1, 0) else { return eprintln!("skipped: eBPF") };
    let leaves = vec![leaf("plain", 1, 60_000_000, None, &[])];
    let mut rounds = Rounds::new(&start(leaves, vec![]), GuardQueue::Tbf, 0);
    assert!(!rounds.read(&plane, 1, 1)[0].elastic);
    rounds.leaves[0].config.held_at_source = true;
    assert!(rounds.read(&plane, 2, 1)[0].elastic);
}

#[test]
fn only_tcp_waits_on_ingress_or_if_excess_is_dropped() {
    let hook =
        |direction, hold| GuardHook { namespace: None, interface: "eth0".into(), direction, leaf: 0, rules: vec![], hold, backstop: false };
    for (direction, hold, datagrams) in
        [(GuardDirection::Egress, true, true), (GuardDirection::Egress, false, false), (GuardDirection::Ingress, true, false)]
    {
        let mut start = start(vec![leaf("a", 1, 0, None, &[])], vec![]);
        start.hooks = vec![hook(direction, hold)];
        let mut rounds = Rounds::new(&start, GuardQueue::Fq, 0);
        (rounds.leaves[0].limited, rounds.leaves[0].speaks_tcp) = (true, false);
        assert_eq!(rounds.wants_queue(0, true), datagrams);
        rounds.queued(0, true);
        let [granted, _] = rounds.ahead(0);
        assert_eq!(granted.others_ns > 0, datagrams);
        assert!(granted.tcp_ns > 0);
        rounds.leaves[0].speaks_tcp = true;
        assert!(rounds.wants_queue(0, true));
    }
}

#[test]
fn a_single_drop_in_demand_advances_the_next_round_if_it_affects_grants() {
    let mut rounds = Rounds::new(&start(vec![leaf("a", 1, 0, None, &[])], vec![]), GuardQueue::Tbf, 0);
    let mut in_motion = |bps: u64| {
        rounds.wants = vec![rounds.want(0, offered(bps, 12_000))];
        let grants = rounds.decide();
        let moves = rounds.in_motion(&grants);
        rounds.grants = grants;
        moves
    };
    in_motion(900_000_000);
    assert!(!in_motion(900_000_000), "nothing moves");
    assert!(in_motion(300_000_000), "it may want less than it is granted");
    assert!(!in_motion(900_000_000), "it does not");
    // It wants three times the pool, and then still twice the pool.
    in_motion(3_000_000_000);
    assert!(!in_motion(2_000_000_000));
}

#[test]
fn a_leaf_that_is_held_back_used_all_of_its_grant_and_others_their_demand() {
    let rounds = Rounds::new(&start(vec![leaf("a", 1, 150_000_000, None, &[])], vec![]), GuardQueue::Tbf, 0);
    let want = Wanted { rate: 7, held_back: false, doubted: 0 };
    assert_eq!(rounds.used(0, want), 7);
    assert_eq!(rounds.used(0, Wanted { held_back: true, ..want }), rounds.grants[0].bps);
}

#[test]
fn only_a_leaf_that_pauses_for_longer_than_its_burst_leaves_its_grant_unused() {
    let (period, granted) = (50_000_000, 100_000_000);
    let of = |moved_ns, passed| unused(moved_ns, passed, granted, 5e7);
    // It kept up with the clock; it woke up late and has 6 ms to catch up; it ran ahead by 8 ms.
    assert_eq!([of(period, 5_000_000), of(44_000_000, 4_400_000), of(58_000_000, 5_800_000)], [0, 0, 0]);
    assert_eq!([of(period, 2_500_000), of(period, 0)], [50_000_000, granted]);
}

#[test]
fn an_idle_guarantee_is_lent_except_for_a_trickle() {
    let mut rounds =
        Rounds::new(&start(vec![leaf("idle", 2, 700_000_000, None, &[]), leaf("busy", 1, 0, None, &[])], vec![]), GuardQueue::Tbf, 0);
    let grants = decided(&mut rounds, &[offered(0, 1), offered(2_000_000_000, 12_000)]);
    assert_eq!(grants, [700_000, 999_300_000]);
}

#[test]
fn a_flow_class_is_limited_by_its_vif_and_by_its_tenant() {
    // Two vifs of one tenant; the first has two flow classes.
    let leaves = vec![leaf("a:voice", 2, 0, None, &[1, 0]), leaf("a", 1, 0, None, &[1, 0]), leaf("b", 1, 0, None, &[0])];
    let totals = vec![total("tenant", 500_000_000, 500_000), total("a", 200_000_000, 400_000)];
    let mut rounds = Rounds::new(&start(leaves, totals), GuardQueue::Tbf, 0);
    let rates = [offered(50_000_000, 12_000), offered(900_000_000, 12_000), offered(900_000_000, 12_000)];
    let grants = granted(&mut rounds, &rates);
    assert!(grants[0].bps + grants[1].bps <= 200_000_000 && grants[0].bps >= 50_000_000, "{grants:?}");
    assert_eq!(grants.iter().map(|grant| grant.bps).sum::<u64>(), 500_000_000);
    let pps: Vec<u64> = grants.iter().map(|grant| grant.pps.unwrap()).collect();
    assert!(pps[0] + pps[1] <= 400_000 && pps.iter().sum::<u64>() <= 500_000, "{pps:?}");
}

#[test]
fn guaranteed_packets_are_kept_when_demand_exceeds_the_hosts_capacity() {
    let mut promised = leaf("promised", 1, 0, None, &[]);
    promised.guarantee_pps = 60_000;
    let mut start = start(vec![promised, leaf("greedy", 5, 0, None, &[])], vec![]);
    start.pools[0].capacity_pps = Some(100_000);
    let mut rounds = Rounds::new(&start, GuardQueue::Tbf, 0);
    let of = |pps: u64| offered(pps * 512, 512);
    let both = granted(&mut rounds, &[of(80_000), of(200_000)]);
    assert_eq!(both.iter().map(|grant| grant.pps.unwrap()).collect::<Vec<_>>(), [60_000, 40_000]);
    let fewer = [of(1000), of(200_000)];
    assert_eq!(granted(&mut rounds, &fewer)[0].pps, Some(60_000), "less was seen but once");
    let lent = granted(&mut rounds, &fewer);
    assert!(lent[1].pps.unwrap() > 98_000, "{lent:?}");
    assert_eq!((rounds.fallback(0).pps, rounds.fallback(1).pps), (Some(80_000), Some(20_000)));
}

#[test]
fn guaranteed_bits_come_with_packets_as_far_as_guaranteed_packets_leave_any() {
    let promised = GuardLeaf { guarantee_pps: 15_000, ..leaf("promised", 2, 120_000_000, None, &[]) };
    let bits_alone = leaf("bits alone", 1, 24_000_000, Some(4000), &[]);
    let mut policy = start(vec![promised, bits_alone], vec![]);
    policy.pools[0].capacity_pps = Some(40_000);
    assert_eq!(assured_pps(&policy.pools, &policy.leaves), [15_000, 2000]);
    let mut rounds = Rounds::new(&policy, GuardQueue::Tbf, 0);
    let (silent, flat_out) = (Rates::default(), offered(1_000_000_000, 12_000));
    let idle = granted(&mut rounds, &[silent, silent]);
    assert_eq!(idle[1].pps, Some(4000), "there is room for all");
    let lent = granted(&mut rounds, &[flat_out, offered(24_000_000, 12_000)]);
    assert!(lent[1].pps.unwrap() >= 2000, "{lent:?}");
    policy.pools[0].capacity_pps = Some(16_000);
    assert_eq!(assured_pps(&policy.pools, &policy.leaves), [15_000, 1000]);
}

#[test]
fn a_queue_is_no_slower_than_the_assured_packets() {
    let promised = GuardLeaf { guarantee_pps: 10_000, ..leaf("promised", 1, 120_000_000, None, &[]) };
    let mut policy = start(vec![promised, leaf("greedy", 2, 0, None, &[])], vec![]);
    policy.pools[0].capacity_pps = Some(50_000);
    let mut rounds = Rounds::new(&policy, GuardQueue::Tbf, 0);
    let rates = [Rates::default(), offered(1_000_000_000, 12_000)];
    for _ in 0..3 {
        rounds.grants = granted(&mut rounds, &rates);
    }
    assert!(rounds.grants[0].pps.unwrap() < 100, "it is idle, and what it is promised is lent");
    assert_eq!(rounds.pass_bps(0), 120_000_000);
}

#[test]
fn a_strained_goal_keeps_guarantees_and_reduces_what_is_lent() {
    let mut rounds =
        Rounds::new(&start(vec![leaf("a", 1, 300_000_000, None, &[]), leaf("b", 1, 0, None, &[])], vec![]), GuardQueue::Tbf, 0);
    let rates = [offered(280_000_000, 12_000), offered(900_000_000, 12_000)];
    decided(&mut rounds, &rates);
    assert!((0..200).any(|_| {
        decided(&mut rounds, &rates);
        rounds.strain(0, 3 * Throttle::MET)
    }));
    let grants = decided(&mut rounds, &rates);
    assert!(grants[0] >= 280_000_000 && grants[1] < 1_000_000, "{grants:?}");
    assert!(!rounds.strain(0, 0));
}

#[test]
fn a_queue_is_paced_by_the_binding_limit_and_never_below_the_fallback() {
    let leaves = vec![leaf("small", 1, 150_000_000, Some(20_000), &[]), leaf("idle", 1, 500_000_000, None, &[])];
    let mut rounds = Rounds::new(&start(leaves, vec![]), GuardQueue::Tbf, 0);
    rounds.grants = granted(&mut rounds, &[offered(10_240_000, 512), offered(0, 1)]);
    assert_eq!((rounds.pass_bps(0), rounds.pass_bps(1)), (20_000 * 512, 500_000_000));
    rounds.leaves[1].queued.tcp = true;
    assert!(rounds.pace_bps(1) < 500_000_000);
    rounds.leaves[1].queued.tcp = false;
    assert!(rounds.pace_bps(1) > 500_000_000);
}

#[test]
fn datagrams_wait_if_they_are_few_and_bits_are_the_binding_limit() {
    let leaves = vec![
        leaf("packets bind", 1, 150_000_000, Some(10_000), &[]),
        leaf("few", 1, 150_000_000, Some(60_000), &[]),
        leaf("many", 1, 700_000_000, None, &[]),
    ];
    let mut rounds = Rounds::new(&start(leaves, vec![]), GuardQueue::Tbf, 0);
    rounds.grants = granted(&mut rounds, &[400_000_000, 200_000_000, 900_000_000].map(|bps| offered(bps, 12_000)));
    for leaf in 0..3 {
        assert!(!rounds.waits(leaf), "without a queue nothing waits");
        rounds.queued(leaf, true);
    }
    assert_eq!([0, 1, 2].map(|leaf| rounds.waits(leaf)), [false, true, false]);
    rounds.queue = GuardQueue::Fq;
    for leaf in 0..3 {
        rounds.queued(leaf, true);
    }
    assert_eq!([0, 1, 2].map(|leaf| rounds.waits(leaf)), [true; 3], "departure times hold back any number");
}

#[test]
fn departure_times_are_as_far_ahead_as_their_rate_requires_up_to_a_limit() {
    let policy = start(vec![leaf("a", 1, 10_000_000, None, &[]), leaf("b", 1, 64_000, None, &[])], vec![]);
    let mut rounds = Rounds::new(&policy, GuardQueue::Fq, 0);
    rounds.grants[0].bps = 100_000_000;
    rounds.grants[1].bps = 64_000;
    let ms = |leaf| rounds.ahead(leaf).map(|hold| hold.tcp_ns / 1_000_000);
    assert_eq!((ms(0), ms(1)), ([5, 59], [200, 200]));
    rounds.queue = GuardQueue::Tbf;
    let ms = |leaf| rounds.ahead(leaf).map(|hold| hold.tcp_ns / 1_000_000);
    assert_eq!((ms(0), ms(1)), ([5, 5], [9_248, 9_248]));
}

/// `benches/guard_cost.py` reads the output of this test. Every demand changes in every round, so that every grant is decided
/// again and most are written.
#[test]
#[ignore = "takes times, and needs root"]
#[expect(clippy::print_stdout, reason = "what a benchmark reads")]
fn rounds_of_ten_thousand() {
    const LEAVES: usize = 10_000;
    let leaves = (0..LEAVES).map(|at| leaf(&at.to_string(), at as u32 % 3, 80_000, None, &[])).collect();
    let policy = start(leaves, vec![]);
    let plane = Plane::load(LEAVES, 0).expect("eBPF, and root");
    let mut rounds = Rounds::new(&policy, GuardQueue::Tbf, 0);
    let mut chance: u64 = 1;
    let mut times: Vec<(Nanos, Nanos)> = Vec::new();
    let mut written = 0;
    for round in 1..=200 {
        for leaf in 0..LEAVES {
            // Multiplier of Knuth's MMIX generator; its high bits have the best quality.
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let packets = chance >> 61;
            plane.count(leaf, (packets * 120, packets), (packets * 60, packets / 2));
        }
        let before = rounds.grants().to_vec();
        let begun = clock::monotonic();
        let decided = rounds.run(&plane, round * policy.period_ns);
        times.push((clock::monotonic() - begun, decided));
        written += before.iter().zip(rounds.grants()).filter(|(old, new)| old != new).count();
    }
    times.sort_unstable();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("median {} of it {} longest {} written {}", median.0, median.1, longest.0, written / times.len());
}
