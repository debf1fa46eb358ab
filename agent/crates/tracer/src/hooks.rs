//! The eBPF program, attached to the interfaces of a path. Dropping it removes the hooks.

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{HashMap, MapData};
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader};
use partywall_bpf::tc::{Direction, Hook, Network};
use partywall_bpf::{object, Link, Namespace, NAME_PREFIX};
use partywall_clock as clock;
use partywall_sys::bpf::test_run;

use crate::budget::{Price, ALL};
use crate::error::TraceError;
use crate::hop::{End, Hop, Only, Settings};
use crate::record::{place, Raw, Tuple, TupleWords};
use crate::rings::{Rings, PLACES};

/// If set, uses hooks as in kernels before 6.6.
const NO_LINKS: &str = "PARTYWALL_NO_TCX";
/// After other filters that may change a packet.
const PRIORITY: u16 = 49_000;
/// Number of test packets run through the program to measure its cost.
const TRIES: u32 = RING_RECORDS_LEAST as u32;
const RING_RECORDS_LEAST: usize = 1 << 12;
/// Size limit for all rings together.
const RINGS_BYTES_MAX: usize = 256 << 20;
const ETHERNET: u16 = 1;
const LOOPBACK: u16 = 772;
const TRANSLATION_BYTES: usize = 48;
const TRANSLATIONS: usize = 4;

pub(crate) struct Hooks {
    pub(crate) rings: Rings,
    flows: HashMap<MapData, u64, TupleWords>,
    hooked: Vec<Hooked>,
    /// The measured cost of a packet in the program on this host, without the kernel's part of the hook.
    pub(crate) price: Option<Price>,
    /// Online CPUs. There are rings for more, which may be added later.
    pub(crate) cpus_online: usize,
    /// Identifies hops' namespaces.
    pub(crate) spaces: Vec<u64>,
}

/// One side of one hop.
struct Hooked {
    hop: usize,
    how: How,
}

enum How {
    Linked(Link),
    /// On kernels before 6.6.
    Filtered {
        network: Network,
        index: u32,
        name: String,
    },
}

/// A resolved local hop.
struct Resolved {
    hop: usize,
    namespace: Namespace,
    index: u32,
    link_header: bool,
    only: Option<Direction>,
}

impl Hooks {
    /// Attaches programs, under `name`, to both sides of every interface on this host.
    pub(crate) fn new(settings: &Settings, name: &str) -> Result<Self, TraceError> {
        clock::check_is_kernels().map_err(|apart| TraceError::Request(vec![apart.to_string()]))?;
        let object = object("trace")?;
        let realtime = std::fs::read_to_string("/sys/kernel/realtime").ok();
        TraceError::of_realtime(realtime.as_deref()).map_or(Ok(()), Err)?;
        let (resolved, spaces) = find(&settings.hops)?;
        let cpus = aya::util::nr_cpus().map_err(|(what, error)| TraceError::refused(what)(&error))?;
        let length = ring_records(settings.ring_bytes, cpus);
        let mut loaded = load(object, settings, &resolved, cpus, length)?;
        // Programs are loaded before their maps are taken, which they need.
        let tried = program(&mut loaded, 0)?;
        let programs = programs(&mut loaded, &resolved)?;
        let mut rings = Rings::open(&mut loaded, cpus, length).map_err(|error| TraceError::refused("mapping the rings")(&error))?;
        let price = price(&mut rings, &tried);
        let flows = loaded.take_map("flows").ok_or_else(|| TraceError::refused("flows")(&io::Error::from(io::ErrorKind::NotFound)))?;
        let flows = HashMap::try_from(flows).map_err(|error| TraceError::refused("opening the map of flows")(&error))?;
        let mut all = Vec::new();
        for (each, direction, program) in &programs {
            let how = hooked(name, each, *direction, program)
                .map_err(|error| TraceError::refused(format!("hooking hop {}", each.hop + 1))(&error))?;
            all.push(Hooked { hop: each.hop, how });
        }
        let cpus_online = aya::util::online_cpus().map_or(cpus, |online| online.len());
        Ok(Self { rings, flows, hooked: all, price, cpus_online, spaces })
    }

    /// True if the interface of hop `hop` was here and has disappeared.
    pub(crate) fn is_gone(&self, hop: usize) -> bool {
        self.hooked.iter().any(|hooked| hooked.hop == hop && hooked.how.is_gone())
    }

    /// The addresses of a flow, if the kernel still has them.
    pub(crate) fn tuple(&self, flow: u64) -> Option<Tuple> {
        self.flows.get(&flow, 0).ok().map(Tuple::from)
    }
}

impl How {
    fn is_gone(&self) -> bool {
        match self {
            Self::Linked(link) => link.is_gone(),
            Self::Filtered { network, index, .. } => network.counters(*index).is_err(),
        }
    }
}

/// Attaches by a link, or by a filter if the kernel has no links for interfaces.
fn hooked(name: &str, hop: &Resolved, direction: Direction, program: &OwnedFd) -> io::Result<How> {
    let filtered = || filter(&format!("{NAME_PREFIX}{name}_{}", hop.hop), hop, direction, program);
    if std::env::var_os(NO_LINKS).is_some() {
        return filtered();
    }
    match Link::new(&hop.namespace, hop.index, direction, program.as_fd()) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => filtered(),
        made => made.map(How::Linked),
    }
}

/// Attaches a filter, as in kernels before 6.6. If this process is killed, it stays until it is found by its name.
fn filter(name: &str, hop: &Resolved, direction: Direction, program: &OwnedFd) -> io::Result<How> {
    let network = Network::of(&hop.namespace)?;
    let priority = free(&network, hop.index, direction)?;
    let hook = Hook { name: name.into(), direction, priority, number: place(hop.hop, direction) };
    network.hook(hop.index, &hook, program.as_fd())?;
    Ok(How::Filtered { network, index: hop.index, name: name.into() })
}

/// Another trace may use the default priority, and its filter would be replaced.
fn free(network: &Network, index: u32, direction: Direction) -> io::Result<u16> {
    let filters = network.filters(index)?;
    let taken: Vec<u16> = filters.iter().filter(|f| f.hook.direction == direction).map(|f| f.hook.priority).collect();
    Ok((PRIORITY..=u16::MAX).find(|priority| !taken.contains(priority)).unwrap_or(PRIORITY))
}

impl Drop for How {
    fn drop(&mut self) {
        let Self::Filtered { network, index, name } = self else { return };
        // The hooks of an interface disappear with it.
        for filter in network.filters(*index).unwrap_or_default().iter().filter(|filter| filter.hook.name == *name) {
            let _ = network.unhook(*index, filter);
        }
        let _ = network.tidy(*index);
    }
}

/// Removes every hook whose name has this prefix from an interface, and returns their names. Nothing is left at an interface or a
/// namespace that does not exist.
///
/// # Errors
/// The kernel's error, if hooks may be left.
pub fn unhook(namespace: Option<String>, interface: &str, prefix: &str) -> io::Result<Vec<String>> {
    let hop = Hop { name: String::new(), namespace, interface: interface.into(), hook: None, remote: false };
    let opened = hop.open_namespace().and_then(|namespace| {
        let network = Network::of(&namespace)?;
        Ok((network.index(interface)?, network))
    });
    let (index, network) = match opened {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        opened => opened?,
    };
    let wanted = format!("{NAME_PREFIX}{prefix}");
    let mut removed = Vec::new();
    for filter in network.filters(index)?.into_iter().filter(|filter| filter.hook.name.starts_with(&wanted)) {
        network.unhook(index, &filter)?;
        removed.push(filter.hook.name);
    }
    let _ = network.tidy(index);
    Ok(removed)
}

/// `ENODEV`, the kernel's answer about an interface that does not exist.
const NO_DEVICE: i32 = 19;

/// True if an interface or a namespace does not exist.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_DEVICE)
}

/// Resolves all local hops. All mistakes are reported at once.
fn find(hops: &[Hop]) -> Result<(Vec<Resolved>, Vec<u64>), TraceError> {
    let (mut resolved, mut spaces, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for (number, hop) in hops.iter().enumerate() {
        if hop.remote {
            // A remote hop is certainly in another namespace.
            spaces.push(u64::MAX);
            continue;
        }
        match look(number, hop) {
            Ok((each, space)) => {
                resolved.push(each);
                spaces.push(space);
            }
            Err(why) => wrong.push(why),
        }
    }
    if wrong.is_empty() {
        Ok((resolved, spaces))
    } else {
        Err(TraceError::Request(wrong))
    }
}

fn look(number: usize, hop: &Hop) -> Result<(Resolved, u64), String> {
    let space = hop.namespace.as_deref();
    let here = space.map_or_else(|| "this network namespace".to_owned(), |space| format!("network namespace {space}"));
    let namespace = hop.open_namespace().map_err(|error| no_namespace(hop, &error))?;
    let interfaces = Network::of(&namespace)
        .and_then(|network| network.interfaces())
        .map_err(|error| format!("hop {}: {here} cannot be entered: {error}; tracing needs root", hop.name))?;
    let Some(interface) = interfaces.iter().find(|interface| interface.name == hop.interface) else {
        let names: Vec<&str> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
        return Err(format!("hop {}: {here} has no interface {:?}; give one of {}", hop.name, hop.interface, names.join(", ")));
    };
    let link_header = matches!(interface.link, ETHERNET | LOOPBACK);
    let identity = namespace.number().map_err(|error| error.to_string())?;
    Ok((Resolved { hop: number, index: interface.index, namespace, link_header, only: hop.hook }, identity))
}

fn no_namespace(hop: &Hop, error: &io::Error) -> String {
    let space = hop.namespace.as_deref().unwrap_or_default();
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let known = if names.is_empty() { "ip netns lists none".into() } else { format!("ip netns lists {}", names.join(", ")) };
    format!("hop {}: network namespace {space:?} cannot be opened: {error}; give a name ({known}), a process number or a path", hop.name)
}

/// Number of records in each CPU's ring, a power of two.
fn ring_records(bytes: usize, cpus: usize) -> u32 {
    let most = RINGS_BYTES_MAX / cpus.max(1);
    let records = bytes.min(most) / (Raw::WORDS * 8);
    (records.max(RING_RECORDS_LEAST).next_power_of_two() / if records.is_power_of_two() || records <= RING_RECORDS_LEAST { 1 } else { 2 })
        as u32
}

fn load(object: &[u8], settings: &Settings, resolved: &[Resolved], cpus: usize, length: u32) -> Result<Ebpf, TraceError> {
    let mut link_header = [0_u8; PLACES];
    for each in resolved.iter().filter(|each| each.link_header) {
        link_header[each.hop * 2] = 1;
        link_header[each.hop * 2 + 1] = 1;
    }
    let only = settings.only;
    let (high, low) = halves(only.address.unwrap_or(Ipv6Addr::UNSPECIFIED));
    let (protocol, port) = (only.protocol.unwrap_or(0), only.port.unwrap_or(0).to_be());
    let (count, translated) = translations(settings);
    let cpus = cpus as u32;
    let looks_at_addresses = u8::from(only != Only::default() || count > 0);
    let recorded_below = ALL / u64::from(settings.one_in.get());
    EbpfLoader::new()
        .map_max_entries("rings", cpus * length)
        .map_max_entries("cpus", cpus)
        .override_global("ring_records", &length, true)
        .override_global("recorded_below", &recorded_below, true)
        .override_global("link_header", &link_header, true)
        .override_global("looks_at_addresses", &looks_at_addresses, true)
        .override_global("only_protocol", &protocol, true)
        .override_global("only_port", &port, true)
        .override_global("only_high", &high, true)
        .override_global("only_low", &low, true)
        .override_global("translations", &count, true)
        .override_global("translated", &translated, true)
        .load(object)
        .map_err(|error| TraceError::refused("loading the tracer into the kernel")(&error))
}

fn halves(address: Ipv6Addr) -> (u64, u64) {
    let bits = u128::from(address);
    ((bits >> 64) as u64, bits as u64)
}

/// In the program's layout: outside and inside, each with address (high, low), port, and six bytes of padding.
fn translations(settings: &Settings) -> (u32, [u8; TRANSLATION_BYTES * TRANSLATIONS]) {
    let mut bytes = [0; TRANSLATION_BYTES * TRANSLATIONS];
    let given = settings.translations.iter().take(TRANSLATIONS);
    for (at, translation) in given.clone().enumerate() {
        let start = at * TRANSLATION_BYTES;
        bytes[start..start + 24].copy_from_slice(&end(translation.outside));
        bytes[start + 24..start + 48].copy_from_slice(&end(translation.inside));
    }
    (given.count() as u32, bytes)
}

fn end(end: End) -> [u8; 24] {
    let (high, low) = halves(end.address);
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&high.to_ne_bytes());
    bytes[8..16].copy_from_slice(&low.to_ne_bytes());
    bytes[16..18].copy_from_slice(&end.port.to_be_bytes());
    bytes
}

/// Measures a program with and without records, and discards its records; None if it cannot be measured.
fn price(rings: &mut Rings, program: &OwnedFd) -> Option<Price> {
    rings.sample_below(ALL);
    let recorded = test_run(program.as_fd(), &datagram(), TRIES);
    rings.sample_below(0);
    let left_out = test_run(program.as_fd(), &datagram(), TRIES);
    rings.reset();
    recorded.ok().zip(left_out.ok()).map(|(with, without)| Price { record_ns: f64::from(with), other_ns: f64::from(without) })
}

/// The programs for each side of each hop to be hooked.
fn programs<'a>(loaded: &mut Ebpf, resolved: &'a [Resolved]) -> Result<Vec<(&'a Resolved, Direction, OwnedFd)>, TraceError> {
    let wanted = |each: &Resolved| {
        let only = each.only;
        Direction::ALL.into_iter().filter(move |direction| only.is_none_or(|only| only == *direction))
    };
    let sides = resolved.iter().flat_map(|each| wanted(each).map(move |direction| (each, direction)));
    sides.map(|(each, direction)| Ok((each, direction, program(loaded, place(each.hop, direction))?))).collect()
}

/// The program for a place, loaded at first use.
fn program(loaded: &mut Ebpf, place: u16) -> Result<OwnedFd, TraceError> {
    let refused = || TraceError::refused("loading the tracer into the kernel");
    let absent = || refused()(&io::Error::from(io::ErrorKind::NotFound));
    let program: &mut SchedClassifier =
        loaded.program_mut(&format!("trace_{place}")).ok_or_else(absent)?.try_into().map_err(|error| refused()(&error))?;
    if program.fd().is_err() {
        program.load().map_err(|error| refused()(&error))?;
    }
    let fd = program.fd().map_err(|error| refused()(&error))?;
    fd.as_fd().try_clone_to_owned().map_err(|error| refused()(&error))
}

/// Ethernet, IPv4 and UDP from 192.0.2.1 to 192.0.2.2, with 64 bytes of payload.
fn datagram() -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    bytes.extend([0x45, 0, 0, 92, 0, 1, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    bytes.extend([0xc0, 0, 0xc0, 1, 0, 72, 0, 0]);
    bytes.extend(b"PWALLTAG");
    bytes.extend([0; 56]);
    bytes
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::num::NonZeroU32;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;
    use crate::rings::Count;

    /// The same as `KNOWN_SETS` and `KNOWN_WAYS` in the program.
    const KNOWN_SETS: u64 = 2048;
    const KNOWN_WAYS: usize = 4;

    /// The program for the first place, attached to nothing, and its maps.
    struct Tried {
        program: OwnedFd,
        rings: Rings,
        flows: HashMap<MapData, u64, TupleWords>,
        _loaded: Ebpf,
    }

    impl Tried {
        /// None, with a line on why, if eBPF cannot be loaded here.
        fn new() -> Option<Self> {
            let object = object("trace").map_err(|_| eprintln!("skipped: no eBPF in this build")).ok()?;
            let (Ok(namespace), Ok(cpus)) = (Namespace::current(), aya::util::nr_cpus()) else {
                eprintln!("skipped: no namespace");
                return None;
            };
            let settings = Settings {
                hops: vec![],
                horizon_ns: 1,
                report_ns: 1,
                budget: None,
                one_in: NonZeroU32::MIN,
                only: Only::default(),
                translations: vec![],
                slowest: 0,
                packets: 0,
                ring_bytes: 1 << 20,
            };
            let resolved = Resolved { hop: 0, namespace, index: 1, link_header: true, only: None };
            let length = ring_records(settings.ring_bytes, cpus);
            let loaded = load(object, &settings, &[resolved], cpus, length);
            let mut loaded = loaded.map_err(|why| eprintln!("skipped: loading eBPF: {why}")).ok()?;
            let program = program(&mut loaded, 0).unwrap();
            let rings = Rings::open(&mut loaded, cpus, length).unwrap();
            rings.sample_below(ALL);
            let flows = HashMap::try_from(loaded.take_map("flows").unwrap()).unwrap();
            Some(Self { program, rings, flows, _loaded: loaded })
        }

        fn send(&self, packet: &[u8]) {
            test_run(self.program.as_fd(), packet, 1).unwrap();
        }

        /// What is recorded of a packet, without its time, and how often it is counted.
        fn seen(&mut self, packet: &[u8]) -> (Vec<[u64; 3]>, Count) {
            self.rings.reset();
            self.send(packet);
            let mut records = Vec::new();
            (0..self.rings.cpus()).for_each(|cpu| self.rings.drain(cpu, |Raw([_, rest @ ..])| records.push(rest)));
            (records, self.rings.count(0))
        }
    }

    #[test]
    fn hooks_at_a_place_that_is_gone_are_gone_and_those_at_one_that_cannot_be_read_may_be_left() {
        assert_eq!(unhook(Some("/run/netns/no-such".into()), "lo", "run_").unwrap(), Vec::<String>::new());
        assert_eq!(unhook(None, "no-such", "run_").unwrap(), Vec::<String>::new());
        unhook(Some("/dev/null".into()), "lo", "run_").unwrap_err();
    }

    #[test]
    fn flows_that_share_a_set_are_written_only_once() {
        let Some(mut tried) = Tried::new() else { return };
        let send = |tried: &Tried, port: u16| {
            let mut packet = datagram();
            packet[34..36].copy_from_slice(&port.to_be_bytes());
            tried.send(&packet);
        };
        (1000..5000).for_each(|port| send(&tried, port));
        let mut sets = BTreeMap::<u64, Vec<(u64, u16)>>::new();
        for (flow, words) in tried.flows.iter().flatten() {
            let tuple = Tuple::from(words);
            sets.entry(flow % KNOWN_SETS).or_default().push((flow, tuple.from.1.min(tuple.to.1)));
        }
        assert_eq!(sets.values().map(Vec::len).sum::<usize>(), 4000);
        let shared = sets.values().find(|shared| shared.len() > KNOWN_WAYS).unwrap();
        for (flow, _) in shared {
            tried.flows.insert(flow, [0; 7], 0).unwrap();
        }
        let all = |tried: &Tried| shared.iter().cycle().take(5 * shared.len()).for_each(|(_, port)| send(tried, *port));
        all(&tried);
        for (flow, _) in shared {
            assert_eq!(tried.flows.get(flow, 0).unwrap(), [0; 7], "it was written again");
            tried.flows.remove(flow).unwrap();
        }
        all(&tried);
        assert!(shared.iter().any(|(flow, _)| tried.flows.get(flow, 0).is_ok()), "those that left their set are written again");
    }

    #[test]
    fn with_more_flows_than_are_remembered_only_some_packets_pay_for_addresses() {
        const FLOWS: u16 = 60_000;
        let Some(tried) = Tried::new() else { return };
        for port in 0..FLOWS {
            let mut packet = datagram();
            packet[34..36].copy_from_slice(&port.to_be_bytes());
            tried.send(&packet);
        }
        let written = tried.flows.keys().count();
        // At once, and then one in some records.
        assert!((8192 + 2000..30_000).contains(&written), "{written} of {FLOWS}");
    }

    /// A packet of IPv4 within Ethernet.
    #[derive(Clone, Debug)]
    struct Frame {
        protocol: u8,
        options: usize,
        fragment: u16,
        /// Added to the right total length.
        lie: i16,
        header_words: u8,
        timestamp: bool,
        marked: bool,
        numbers: [u8; 16],
        payload: usize,
    }

    impl Frame {
        fn bytes(&self, tagged: bool) -> Vec<u8> {
            let mut transport = self.numbers.to_vec();
            match self.protocol {
                6 => {
                    transport.extend([0; 4]);
                    transport[12] = self.header_words << 4;
                    transport.extend([1, 1, if self.timestamp { 8 } else { 9 }, 10]);
                    transport.extend([self.numbers; 3].concat());
                    transport.truncate(usize::from(self.header_words.max(5)) * 4);
                }
                _ => transport.truncate(8),
            }
            transport.extend(if self.marked { b"PWALLTAG" } else { b"anything" }.iter().chain(&[7; 92]).take(self.payload));
            let total = (20 + 4 * self.options + transport.len()) as u16;
            let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
            bytes.extend(if tagged { &[0x81, 0, 0, 5][..] } else { &[] });
            bytes.extend([8, 0, 0x45 + self.options as u8, 0]);
            bytes.extend(total.wrapping_add_signed(self.lie).to_be_bytes());
            bytes.extend([0, 1]);
            bytes.extend(self.fragment.to_be_bytes());
            bytes.extend([64, self.protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
            bytes.extend(vec![1; 4 * self.options]);
            bytes.extend(transport);
            bytes
        }
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let ip = (prop_oneof![3 => Just(17_u8), 3 => Just(6), 1 => Just(1)], 0..2_usize);
        let fragment = prop_oneof![4 => Just(0x4000_u16), 2 => Just(0), 1 => Just(0x2000), 1 => Just(5)];
        let lie = prop_oneof![6 => Just(0), 1 => -60..60_i16, 1 => Just(-200)];
        let words = prop_oneof![2 => Just(8_u8), 1 => Just(5), 1 => 0..16_u8];
        (ip, fragment, lie, words, any::<bool>(), any::<bool>(), any::<[u8; 16]>(), 0..100_usize).prop_map(
            |((protocol, options), fragment, lie, header_words, timestamp, marked, numbers, payload)| Frame {
                protocol,
                options,
                fragment,
                lie,
                header_words,
                timestamp,
                marked,
                numbers,
                payload,
            },
        )
    }

    /// The short way is for packets without a tag; behind one, the other way is taken.
    #[test]
    fn the_short_way_through_the_program_finds_the_same_as_the_other() {
        let Some(tried) = Tried::new() else { return };
        let tried = RefCell::new(tried);
        let seen = |frame: &Frame, tagged| tried.borrow_mut().seen(&frame.bytes(tagged));
        let short = Frame {
            protocol: 17,
            options: 0,
            fragment: 0x4000,
            lie: 0,
            header_words: 5,
            timestamp: false,
            marked: true,
            numbers: [3; 16],
            payload: 64,
        };
        assert_eq!(seen(&short, false).0.len(), 1);
        let mut runner = TestRunner::new(Config::with_cases(2000));
        runner
            .run(&frames(), |frame| {
                prop_assert_eq!(seen(&frame, false), seen(&frame, true));
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn rings_are_powers_of_two_within_bounds() {
        assert_eq!(ring_records(4 << 20, 2), 1 << 17);
        assert_eq!(ring_records((4 << 20) + 32, 2), 1 << 17);
        assert_eq!(ring_records(0, 2), 1 << 12);
        assert_eq!(ring_records(64 << 20, 1024), 1 << 13);
    }
}
