//! Tests hooks on a real interface, in the test's own namespace. Skipped with the reason without root, or without clang at build time.

use aya::programs::SchedClassifier;
use aya::Ebpf;
use partywall_bpf::tc::{Direction, Filter, Hook, Network, Queue, QueueKind, Root};
use partywall_bpf::{object, Namespace, Watch};

fn ready() -> Option<(Ebpf, Network)> {
    let object = object("guard").map_err(|why| eprintln!("skipped: {why}")).ok()?;
    let namespace = Namespace::fresh().map_err(|why| eprintln!("skipped: a new network namespace: {why}")).ok()?;
    let mut loaded = Ebpf::load(object).map_err(|why| eprintln!("skipped: loading eBPF: {why}")).ok()?;
    program(&mut loaded).load().unwrap();
    Some((loaded, Network::of(&namespace).unwrap()))
}

fn program(loaded: &mut Ebpf) -> &mut SchedClassifier {
    loaded.program_mut("guard").unwrap().try_into().unwrap()
}

fn hook(direction: Direction, number: u16) -> Hook {
    Hook { name: "partywall_test".into(), direction, priority: 7, number }
}

#[test]
fn a_hook_is_found_replaced_and_removed_without_a_trace() {
    let Some((mut loaded, network)) = ready() else { return };
    let lo = network.index("lo").unwrap();
    let program = program(&mut loaded);
    let fd = program.fd().unwrap().try_clone().unwrap();
    network.hook(lo, &hook(Direction::Egress, 3), std::os::fd::AsFd::as_fd(&fd)).unwrap();
    network.hook(lo, &hook(Direction::Egress, 4), std::os::fd::AsFd::as_fd(&fd)).unwrap();
    network.hook(lo, &hook(Direction::Ingress, 5), std::os::fd::AsFd::as_fd(&fd)).unwrap();

    let filters = network.filters(lo).unwrap();
    let hooks: Vec<Hook> = filters.iter().map(|filter| filter.hook.clone()).collect();
    assert_eq!(hooks, [hook(Direction::Ingress, 5), hook(Direction::Egress, 4)]);
    let id = program.info().unwrap().id();
    assert!(filters.iter().all(|filter| filter.program == id), "{filters:?} is not program {id}");

    network.unhook(lo, &filters[0]).unwrap();
    network.tidy(lo).unwrap();
    assert_eq!(network.filters(lo).unwrap().len(), 1, "tidying must leave a hook in use alone");
    network.unhook(lo, &filters[1]).unwrap();
    network.tidy(lo).unwrap();
    assert_eq!(network.filters(lo).unwrap(), Vec::<Filter>::new());
    network.unhook(lo, &filters[1]).unwrap();
}

#[test]
fn a_missing_interface_is_named_by_the_kernels_error() {
    let Some((_, network)) = ready() else { return };
    assert_eq!(network.index("nothere").unwrap_err().raw_os_error(), Some(19));
    assert_eq!(network.interfaces().unwrap().iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["lo"]);
}

#[test]
fn a_watch_follows_another_namespace_and_releases_the_first() {
    let (Ok(first), Ok(second)) = (Namespace::fresh(), Namespace::fresh()) else { return eprintln!("skipped: a new network namespace") };
    let watch = Watch::new(&[first]).unwrap();
    watch.follow(0, Some(&second)).unwrap();
    assert_eq!(watch.wait().unwrap(), Some(vec![]), "the change wakes it");
    watch.follow(0, None).unwrap();
    watch.end();
    assert_eq!(watch.wait().unwrap(), None);
}

#[test]
fn an_interface_for_a_detour_is_added_once_and_removed() {
    let Some((_, network)) = ready() else { return };
    if !network.has_detours().unwrap() {
        return eprintln!("skipped: the kernel has no ifb");
    }
    let before = network.interfaces().unwrap().len();
    let index = network.add_detour("pwtest1").unwrap();
    assert_eq!(network.add_detour("pwtest1").unwrap(), index, "one of that name is kept");
    assert!(network.interface(index).unwrap().has_link_header());
    network.remove_detour(index).unwrap();
    network.remove_detour(index).unwrap();
    assert_eq!(network.interfaces().unwrap().len(), before);
}

#[test]
fn the_queue_of_one_interface_is_found_and_removed() {
    let Some((_, network)) = ready() else { return };
    let lo = network.index("lo").unwrap();
    assert_eq!((network.root(lo).unwrap(), network.backlog(lo).unwrap()), (Root::Default, None));
    let mut queues = vec![(Queue::Rate { bytes_per_second: 1_000_000, burst_bytes: 10_000, limit_bytes: 20_000 }, QueueKind::Rate)];
    if network.has_departures().unwrap() {
        queues.push((Queue::Departures { limit_packets: 1000, slack_ns: 1000 }, QueueKind::Departures));
    }
    assert!(network.has_rates().unwrap(), "the tests need a kernel with tbf");
    assert_eq!(network.root(lo).unwrap(), Root::Default, "the checks for both kinds changed nothing");
    for (queue, kind) in queues {
        network.queue(lo, &queue).unwrap();
        assert_eq!(network.root(lo).unwrap(), Root::Ours(kind));
        assert_eq!(network.backlog(lo).unwrap().map(|backlog| backlog.bytes), Some(0));
    }
    network.unqueue(lo).unwrap();
    assert_eq!(network.root(lo).unwrap(), Root::Default);
    // A request for a missing interface must not return another interface's queue.
    assert_eq!(network.root(lo + 7).unwrap_err().raw_os_error(), Some(19));
    network.unqueue(lo + 7).unwrap();
}
