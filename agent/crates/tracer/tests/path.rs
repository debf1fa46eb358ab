//! A trace on real interfaces: two namespaces joined by a veth pair, datagrams with a marker and without. Skipped, saying why,
//! without root, without iproute2 or without clang at build time.

use std::net::{Ipv4Addr, UdpSocket};
use std::num::NonZeroU32;
use std::process::Command;

use partywall_bpf::Namespace;
use partywall_clock::SessionClock;
use partywall_tracer::{Hop, Only, Settings, TraceError, Tracer};

const SECOND: u64 = 1_000_000_000;

/// Two namespaces, named after this process, that go with the value.
struct Pair(String, String);

/// A clock that a controller adjusted, as on a machine elsewhere: the kernel writes other times.
fn adjusted() -> SessionClock {
    let clock = SessionClock::default();
    clock.shift(3600 * SECOND.cast_signed()).unwrap();
    clock
}

impl Pair {
    fn new(name: &str) -> Option<Self> {
        partywall_bpf::built().map_err(|why| eprintln!("skipped: {why}")).ok()?;
        partywall_clock::check_is_kernels().map_err(|why| eprintln!("skipped: {why}")).ok()?;
        let pair = Self(format!("pwt{}{name}a", std::process::id()), format!("pwt{}{name}b", std::process::id()));
        let all = format!(
            "ip netns add {a} && ip netns add {b} && ip link add va netns {a} type veth peer name vb netns {b} \
             && ip -n {a} addr add 10.77.0.1/24 dev va && ip -n {b} addr add 10.77.0.2/24 dev vb \
             && ip -n {a} link set va up && ip -n {b} link set vb up",
            a = pair.0,
            b = pair.1
        );
        let done = Command::new("sh").args(["-c", &all]).output().ok()?;
        if !done.status.success() {
            eprintln!("skipped: network namespaces: {}", String::from_utf8_lossy(&done.stderr));
            return None;
        }
        Some(pair)
    }

    fn sockets(&self) -> (UdpSocket, UdpSocket) {
        let bind = |space: &str, last| Namespace::named(space).unwrap().inside(|| UdpSocket::bind((Ipv4Addr::new(10, 77, 0, last), 9000)));
        let (from, to) = (bind(&self.0, 1).unwrap(), bind(&self.1, 2).unwrap());
        from.connect("10.77.0.2:9000").unwrap();
        to.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        (from, to)
    }

    fn settings(&self) -> Settings {
        let hop = |space: &str, interface: &str| Hop {
            name: format!("{space}/{interface}"),
            namespace: Some(space.into()),
            interface: interface.into(),
            hook: None,
            remote: false,
        };
        Settings {
            hops: vec![hop(&self.0, "va"), hop(&self.1, "vb")],
            horizon_ns: SECOND / 5,
            report_ns: 1,
            budget: None,
            one_in: NonZeroU32::MIN,
            only: Only { protocol: Some(17), ..Only::default() },
            translations: Vec::new(),
            slowest: 4,
            packets: 4,
            ring_bytes: 1 << 20,
        }
    }

    fn filters(&self) -> String {
        let show = |space: &str, dev: &str| {
            ["ingress", "egress"]
                .map(|side| Command::new("tc").args(["-n", space, "filter", "show", "dev", dev, side]).output().unwrap().stdout)
        };
        [show(&self.0, "va"), show(&self.1, "vb")].concat().into_iter().map(|out| String::from_utf8(out).unwrap()).collect()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for space in [&self.0, &self.1] {
            let _ = Command::new("ip").args(["netns", "del", space]).status();
        }
    }
}

fn payload(number: u64, marked: bool) -> Vec<u8> {
    let mut bytes = if marked { b"PWALLTAG".to_vec() } else { b"anything".to_vec() };
    bytes.extend(number.to_be_bytes());
    bytes.extend([7; 30]);
    bytes
}

#[test]
fn datagrams_there_and_back_are_all_accounted_for_and_nothing_stays() {
    let Some(pair) = Pair::new("x") else { return };
    let clock = adjusted();
    let begun_ns = clock.now();
    let tracer = Tracer::start(pair.settings(), "test", &clock).unwrap();
    assert!(tracer.record_ns().is_some_and(|ns| ns > 0 && ns < 1_000_000));
    let (from, to) = pair.sockets();
    let mut room = [0; 64];
    for number in 0..200 {
        from.send(&payload(number, number % 2 == 0)).unwrap();
        let (_, sender) = to.recv_from(&mut room).unwrap();
        to.send_to(&room, sender).unwrap();
    }
    let done_ns = tracer.close();
    from.send(&payload(1000, true)).unwrap();
    clock.sleep_until(done_ns);
    let upshot = tracer.stop();
    assert_eq!(pair.filters(), "");
    for way in &upshot.report.ways {
        let counts = &way.counts;
        assert_eq!((counts.delivered, counts.hops[1].lost, counts.unfinished, counts.total.negative), (200, 0, 0, 0));
        assert_eq!(way.slowest.len(), 4);
        let times = way.slowest.iter().flat_map(|passage| passage.times).flatten();
        assert!(times.into_iter().all(|at_ns| (begun_ns..done_ns).contains(&at_ns)), "times are the session's");
    }
    assert!(upshot.report.hops.iter().all(|hop| hop.missed == 0 && hop.recorded >= 400));
    let tuple =
        upshot.flows.iter().map(|(_, tuple)| *tuple).find(|tuple| tuple.from.0.to_ipv4_mapped() == Some(Ipv4Addr::new(10, 77, 0, 1)));
    assert_eq!(tuple.map(|tuple| (tuple.from.1, tuple.to.1, tuple.protocol)), Some((9000, 9000, 17)));
}

#[test]
fn what_cannot_be_found_is_named_all_at_once() {
    let Some(pair) = Pair::new("y") else { return };
    let mut settings = pair.settings();
    settings.hops[0].interface = "vx".into();
    settings.hops[1].namespace = Some("nowhere-at-all".into());
    let Err(TraceError::Request(wrong)) = Tracer::start(settings, "test", &adjusted()).map(drop) else { panic!("it started") };
    assert!(wrong[0].contains("no interface \"vx\"") && wrong[0].contains("va"), "{wrong:?}");
    assert!(wrong[1].contains("nowhere-at-all") && wrong[1].contains(&pair.0), "{wrong:?}");
    assert_eq!(pair.filters(), "");
}
