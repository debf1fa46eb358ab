use partywall_bpf::tc::Network;
use partywall_bpf::Namespace;
use partywall_wire::{GuardDemand, GuardDirection, GuardDivision, GuardFinding, GuardHook, GuardLeaf, GuardPool, GuardQueue};

use super::start::{LEAVES_MAX, RATE_MOST, TIME_MOST};
use super::*;
use crate::place::{Look, QueueRate, SHORT_LOOKS};
use crate::whereabouts::Where;

/// A request with one vif, the `lo` of the thread's namespace.
fn request() -> GuardStart {
    let leaf = GuardLeaf {
        name: "vm".into(),
        pool: 0,
        totals: vec![],
        priority: 1,
        guarantee_bps: 10_000_000,
        ceiling_bps: 20_000_000,
        guarantee_pps: 0,
        ceiling_pps: None,
        burst_ns: 10_000_000,
        hold_ns: 20_000_000,
        held_at_source: false,
    };
    let hook = GuardHook {
        namespace: None,
        interface: "lo".into(),
        direction: GuardDirection::Egress,
        leaf: 0,
        rules: vec![],
        hold: false,
        backstop: false,
    };
    GuardStart {
        id: "test".into(),
        pools: vec![GuardPool { name: "link".into(), capacity_bps: 100_000_000, capacity_pps: None, link: None }],
        totals: vec![],
        leaves: vec![leaf],
        hooks: vec![hook],
        goals: vec![],
        period_ns: 10_000_000,
        report_ns: 100_000_000,
        check_ns: 100_000_000,
        fallback_after_ns: Some(1_000_000_000),
        queue: Some(GuardQueue::Tbf),
        demand: GuardDemand::default(),
        division: GuardDivision::default(),
        transient: false,
    }
}

#[test]
fn a_time_or_rate_whose_sums_leave_64_bits_is_refused_by_name() {
    type Change = (&'static str, fn(&mut GuardStart));
    let changes: [Change; 8] = [
        ("burst_ns", |start| start.leaves[0].burst_ns = u64::MAX),
        ("hold_ns", |start| start.leaves[0].hold_ns = TIME_MOST + 1),
        ("ceiling_bps", |start| start.leaves[0].ceiling_bps = u64::MAX / 2),
        ("ceiling_pps", |start| start.leaves[0].ceiling_pps = Some(u64::MAX)),
        ("guarantee_pps", |start| start.leaves[0].guarantee_pps = RATE_MOST + 1),
        ("capacity_bps", |start| start.pools[0].capacity_bps = u64::MAX),
        ("check_ns", |start| start.check_ns = u64::MAX),
        ("fallback_after_ns", |start| start.fallback_after_ns = Some(u64::MAX)),
    ];
    for (what, change) in changes {
        let mut start = request();
        change(&mut start);
        let why = checked(&start).unwrap_err().to_string();
        assert!(why.contains(&format!("{what} is ")) && why.contains("; give at most "), "{why}");
    }
    assert!(checked(&request()).is_ok());
    assert!(RATE_MOST.checked_mul(LEAVES_MAX as u64).is_some());
}

/// The parts of a guard, without the fallback process.
fn parts(start: &GuardStart) -> Result<(Arc<Core>, Tender, Arc<Watch>), GuardError> {
    parts_in(start, &SessionClock::default())
}

fn parts_in(start: &GuardStart, session: &SessionClock) -> Result<(Arc<Core>, Tender, Arc<Watch>), GuardError> {
    let mut networks = Networks::default();
    let mut places = places(start, GuardQueue::Tbf, &mut networks)?;
    let plane = load(start)?;
    let mut rounds = Rounds::new(start, GuardQueue::Tbf, clock::monotonic());
    prepare(start, &plane, &mut rounds, &places)?;
    let (spaces, namespaces) = networks.namespaces();
    let watch = Arc::new(Watch::new(&namespaces).map_err(GuardError::kernel("listening"))?);
    put_all(start, &plane, &rounds, &mut places)?;
    let core = Arc::new(Core::new(start.clone(), plane, rounds, &places));
    let mut tender = Tender::new(start.clone(), session, core.clone(), places, vec![None]);
    (tender.networks, tender.spaces, tender.watch) = (networks, spaces, Some(watch.clone()));
    Ok((core, tender, watch))
}

/// A running guard of these parts, without the fallback process.
fn running((core, tender, watch): (Arc<Core>, Tender, Arc<Watch>)) -> Guard {
    let mut guard = Guard {
        start: tender.start.clone(),
        session: SessionClock::default(),
        shared: Arc::default(),
        core: core.clone(),
        excess: vec![],
        without_backstop: vec![],
        queue: GuardQueue::Tbf,
        watch,
        fallback_process: Arc::default(),
        threads: vec![],
    };
    guard.run(core, tender).unwrap();
    guard
}

#[test]
fn a_guard_of_which_a_thread_panics_ends_whole_and_says_so() {
    let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
    let rounds: fn(&Core, &mut Tender) = |core, _| core.kept().queued.push(true);
    let reports: fn(&Core, &mut Tender) = |_, tender| tender.reported.clear();
    for (thread, plant) in [("guard", rounds), ("guard-tend", reports)] {
        let outcome = namespace.inside(|| {
            let Ok(mut parts) = parts(&request()).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
            plant(&parts.0, &mut parts.1);
            let mut guard = running(parts);
            let until_ns = clock::monotonic() + 30_000_000_000;
            while guard.ended().is_none() {
                assert!(clock::monotonic() < until_ns, "the guard did not say that {thread} had panicked");
                clock::sleep_until(clock::monotonic() + 1_000_000);
            }
            let why = guard.ended().unwrap();
            assert!(why.starts_with(&format!("its thread {thread} panicked")), "{why}");
            assert_eq!(guard.adjust(&request()).unwrap_err().to_string(), "the guard has ended");
            Ok(())
        });
        outcome.unwrap();
    }
}

#[test]
fn a_fallback_process_that_ended_is_started_again_and_reported() {
    let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
    let outcome = namespace.inside(|| {
        let Ok((_, mut tender, _)) = parts(&request()).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
        tender.keep_fallback_process();
        assert_eq!(tender.notes, []);
        let process = tender.fallback_process.clone();
        *process.lock().unwrap() = FallbackProcess::start().unwrap();
        let first = process.lock().unwrap().child().id();
        process.lock().unwrap().child().kill().unwrap();
        process.lock().unwrap().child().wait().unwrap();
        tender.keep_fallback_process();
        let text = "the fallback process had ended, and was started again".into();
        assert_eq!(tender.report().notes, [GuardNote { about: "test".into(), kind: GuardFinding::Repaired, text }]);
        assert_ne!(process.lock().unwrap().child().id(), first);
        process.lock().unwrap().kill();
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn a_guard_that_was_not_stopped_has_not_ended() {
    let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
    let outcome = namespace.inside(|| {
        let Ok(parts) = parts(&request()).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
        let mut guard = running(parts);
        guard.adjust(&request()).unwrap();
        assert_eq!(guard.ended(), None);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn a_policy_is_replaced_whole_or_not_at_all() {
    let start = request();
    let changed = |change: &dyn Fn(&mut GuardStart)| {
        let mut to = start.clone();
        change(&mut to);
        alike(&start, &to).map_err(|error| error.to_string())
    };
    let said = |change: &dyn Fn(&mut GuardStart)| changed(change).unwrap_err();
    assert_eq!(changed(&|to| to.leaves[0].ceiling_bps = 5_000_000), Ok(()));
    assert_eq!(changed(&|to| to.hooks[0].interface = "moved".into()), Ok(()), "a vif stays where it is");
    assert!(said(&|to| to.leaves[0].name = "other".into()).starts_with("\"other\" is not in the running policy"));
    assert!(said(&|to| to.leaves.clear()).starts_with("\"vm\" is in the running policy only"));
    assert!(said(&|to| to.hooks[0].hold = true).contains("\"vm\" has another side, excess or flow classes"));
    assert!(said(&|to| to.queue = Some(GuardQueue::Fq)).contains("queue"));
    assert!(said(&|to| to.id = "b".into()).contains("called"));
}

#[test]
fn a_new_policy_holds_at_once_and_hooks_stay() {
    let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
    let outcome = namespace.inside(|| {
        let Ok((core, mut tender, _)) = parts(&request()).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
        core.round();
        let mut to = request();
        (to.leaves[0].ceiling_bps, to.leaves[0].guarantee_bps) = (5_000_000, 3_000_000);
        to.hooks[0].interface = "ignored".into();
        let (_, at_ns) = tender.adjust(to);
        assert!(at_ns <= clock::monotonic());
        assert!(core.kept().rounds.grants()[0].bps <= 5_000_000, "before another round");
        assert_eq!(core.kept().rounds.fallback(0).bps, 3_000_000);
        assert_eq!(tender.allowed(0).ceiling_bps, 5_000_000);
        let looked = tender.vifs[0].place.look(&core.plane, &mut tender.networks);
        assert!(matches!(looked, Ok(Look { whereabouts: Where::Same, renamed: false, whole: true, .. })));
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn packets_of_a_new_interface_are_not_sent_through_the_detour_of_the_old_one() {
    let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
    let network = Network::of(&namespace).unwrap();
    // Any interface that can be removed: an ifb.
    let Ok(index) = network.add_detour("vif") else { return eprintln!("skipped: ifb") };
    let mut start = request();
    (start.hooks[0].interface, start.hooks[0].direction) = ("vif".into(), GuardDirection::Ingress);
    let outcome = namespace.inside(|| {
        let Ok((core, mut tender, _)) = parts(&start).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
        let place = &mut tender.vifs[0].place;
        place.pace(QueueRate { bps: 10_000_000, strict: true, tcp: true, short: true }, Some(&core.plane)).unwrap();
        assert_eq!(core.plane.detour_of(0), u64::from(place.detour().unwrap()));
        network.remove_detour(index)?;
        // Nothing is there to be hooked, so what was done before the hook is seen.
        assert!(place.hook_at(Arc::new(Network::of(&namespace)?), index, &core.plane).is_err());
        assert_eq!(core.plane.detour_of(0), 0);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn a_queue_of_datagrams_in_which_little_waits_gets_the_larger_burst_until_its_rate_changes() {
    let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
    let Ok(_) = Network::of(&namespace).and_then(|network| network.add_detour("vif")) else { return eprintln!("skipped: ifb") };
    let mut start = request();
    start.hooks[0].interface = "vif".into();
    let outcome = namespace.inside(|| {
        let Ok((core, mut tender, _)) = parts(&start).map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
        let place = &mut tender.vifs[0].place;
        let burst = || {
            let shown = std::process::Command::new("tc").args(["-j", "qdisc", "show", "dev", "vif"]).output().unwrap();
            let text = String::from_utf8(shown.stdout).unwrap();
            text.split("\"burst\":").nth(1).unwrap().split([',', '}']).next().unwrap().trim().parse::<u64>().unwrap()
        };
        let datagrams = QueueRate { bps: 80_000_000, strict: true, tcp: false, short: true };
        place.pace(datagrams, Some(&core.plane)).unwrap();
        (1..SHORT_LOOKS).try_for_each(|_| place.waits(0)).unwrap();
        place.waits(16_000_000).unwrap();
        (1..SHORT_LOOKS).try_for_each(|_| place.waits(14_000_000)).unwrap();
        let mut seen = vec![burst()];
        place.waits(14_000_000).unwrap();
        seen.push(burst());
        // The same rate changes nothing, another takes it back.
        place.pace(datagrams, Some(&core.plane)).unwrap();
        seen.push(burst());
        place.pace(QueueRate { bps: 40_000_000, ..datagrams }, Some(&core.plane)).unwrap();
        seen.push(burst());
        // A queue that holds TCP, or that only stays out of the way, keeps its burst.
        for other in [QueueRate { tcp: true, ..datagrams }, QueueRate { strict: false, ..datagrams }] {
            place.pace(other, Some(&core.plane)).unwrap();
            let before = burst();
            (0..2 * SHORT_LOOKS).try_for_each(|_| place.waits(0)).unwrap();
            assert_eq!(burst(), before, "{other:?}");
        }
        assert_eq!(seen, [20_000, 100_000, 100_000, 10_000]);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn the_heartbeat_is_in_kernel_time_however_the_sessions_clock_was_adjusted() {
    let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
    let session = SessionClock::default();
    session.shift(3_600_000_000_000).unwrap();
    let outcome = namespace.inside(|| {
        let parts = parts_in(&request(), &session);
        let Ok((core, mut tender, _)) = parts.map_err(|why| eprintln!("skipped: {why}")) else { return Ok(()) };
        let before_ns = clock::monotonic();
        core.round();
        let report = tender.report();
        let kernels = before_ns..=clock::monotonic();
        assert!(kernels.contains(&core.plane.beaten_ns()), "{} is not in the kernel's {kernels:?}", core.plane.beaten_ns());
        let sessions = session.at(before_ns)..=session.now();
        assert!(sessions.contains(&report.at_ns), "{} is not in the session's {sessions:?}", report.at_ns);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn the_heartbeat_is_never_stale_while_a_tenant_deletes_its_filters_in_a_loop() {
    let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
    let tenant = Network::of(&namespace).unwrap();
    let seconds = 3;
    let outcome = namespace.inside(|| {
        let (core, mut tender, watch) = match parts(&request()) {
            Ok(parts) => parts,
            Err(why) => {
                eprintln!("skipped: {why}");
                return Ok(());
            }
        };
        let shared = Shared::default();
        thread::scope(|scope| {
            scope.spawn(|| core.run(&shared));
            scope.spawn(|| tender.run(&shared));
            scope.spawn(|| listen(&watch, &shared));
            let (lo, until, mut oldest) = (tenant.index("lo").unwrap(), clock::monotonic() + seconds * 1_000_000_000, 0);
            while clock::monotonic() < until {
                for filter in tenant.filters(lo).unwrap() {
                    tenant.unhook(lo, &filter).unwrap();
                }
                let beaten_ns = core.plane.beaten_ns();
                oldest = oldest.max(clock::monotonic().saturating_sub(beaten_ns));
            }
            shared.end();
            watch.end();
            assert!(oldest < 1_000_000_000, "a heartbeat was {} ms old", oldest / 1_000_000);
        });
        let notes: Vec<GuardNote> = shared.state().reports.iter().flat_map(|report| report.notes.clone()).collect();
        assert!((1..=1 + seconds).contains(&(notes.len() as u64)), "{notes:?}");
        Ok(())
    });
    outcome.unwrap();
}
