use super::*;
use proptest::prelude::*;

#[test]
fn each_word_has_its_offset_in_the_program() {
    use partywall_bpf::Layout;
    let Ok(object) = partywall_bpf::object("guard") else { return eprintln!("skipped: no eBPF in this build") };
    let rates = [
        ("byte_cost", COST),
        ("packet_cost", COST + 1),
        ("byte_tolerance", TOLERANCE),
        ("packet_tolerance", TOLERANCE + 1),
        ("hold_tcp", HOLD_TCP),
        ("hold_others", HOLD_TCP + 1),
    ];
    let limits = [("granted", GRANTED), ("fallback", FALLBACK), ("rules", RULES), ("fragments", FRAGMENTS), ("detour", DETOUR)];
    let state = [
        ("byte_due", DUE),
        ("packet_due", DUE + 1),
        ("tcp_bytes", TCP_BYTES),
        ("other_bytes", OTHER_BYTES),
        ("passed_packets", PASSED_PACKETS),
        ("dropped_bytes", DROPPED_BYTES),
        ("dropped_packets", DROPPED_PACKETS),
        ("marked_packets", MARKED_PACKETS),
        ("departure", DEPARTURE),
        ("sparse_due", SHARES),
        ("neighbour_due", SHARES + 1),
    ];
    let control = [("heartbeat_ns", HEARTBEAT), ("stale_after_ns", STALE_AFTER), ("departures", DEPARTURES)];
    assert_eq!(Layout::of(object, "rates"), Some(Layout::words(RATES_WORDS, &rates)));
    assert_eq!(Layout::of(object, "limits"), Some(Layout::words(LIMITS_WORDS, &limits)));
    assert_eq!(Layout::of(object, "state"), Some(Layout::words(STATE_WORDS, &state)));
    assert_eq!(Layout::of(object, "control"), Some(Layout::words(CONTROL_WORDS, &control)));
    assert_eq!((FALLBACK - GRANTED, RULES - FALLBACK, FRAGMENTS - RULES), (RATES_WORDS, RATES_WORDS, RULES_MAX));
}

#[test]
fn a_rate_of_0_is_not_unlimited() {
    assert_ne!(cost(0, 8, COST_SHIFT), 0);
    assert_ne!(cost(u64::MAX, 1, PACKET_SHIFT), 0);
}

#[test]
fn a_debt_is_in_bytes_and_is_converted_to_the_new_cost() {
    // 57 KB at a rate of 0, and the time that they take at 10 Mb/s.
    let (nothing, ten) = (cost(0, 8, COST_SHIFT), cost(10_000_000, 8, COST_SHIFT));
    let (now, bytes) = (1 << 40, 57_000);
    let owed = |cost: u64| now + ((bytes * cost) >> COST_SHIFT);
    assert!(owed_at_new_cost(owed(nothing), now, nothing, ten).abs_diff(owed(ten)) < 1 << TIME_SHIFT);
    assert_eq!(owed_at_new_cost(owed(ten), now, ten, ten), owed(ten));
    // Saved credit stays.
    assert_eq!(owed_at_new_cost(now - 7, now, nothing, ten), now - 7);
    assert_eq!(owed_at_new_cost(now + 7, now, 0, ten), now + 7);
}

#[test]
fn what_passed_no_hook_is_paid_by_the_burst_and_then_by_time() {
    let Ok(plane) = Plane::load(1, 0) else { return eprintln!("skipped: eBPF") };
    let (now, burst_ns) = (5_000_000_000, 10_000_000);
    let grant = Grant { bps: 8_000_000, pps: None, burst_ns, packet_burst_ns: burst_ns };
    plane.state.release(state_word(0, DUE), 0);
    plane.grant(0, now, grant);
    plane.charge(0, now, 4_000_000);
    assert_eq!(plane.due(0, now, grant)[0], now - 6_000_000);
    plane.charge(0, now, 50_000_000);
    assert_eq!(plane.due(0, now, grant)[0], now + 44_000_000);
}

/// An empty TCP frame over IPv4.
fn tcp() -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12..14].copy_from_slice(&[8, 0]);
    (frame[14], frame[23], frame[46]) = (0x45, 6, 5 << 4);
    frame
}

/// Runs the program on a packet of `segments` segments of one byte. Returns the leaf's debt in ns and the counted bytes. The hook
/// has no number, so its limits are those before the first leaf's.
fn owed_ns(bps: u64, segments: u32) -> Option<(u64, u64)> {
    use partywall_sys::bpf::{test_segmented, Segmented};
    let plane = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")).ok()?;
    let grant = Grant { bps, pps: Some(1), burst_ns: 1, packet_burst_ns: 1 };
    for (at, word) in grant.words().into_iter().enumerate() {
        plane.limits.release(at, word);
    }
    test_segmented(plane.program(true), &tcp(), Segmented { count: segments, size: 1 }).unwrap();
    let owed = (plane.state.read(0) >> TIME_SHIFT).saturating_sub(partywall_clock::monotonic());
    Some((owed, plane.state.read(2)))
}

#[test]
fn a_large_packet_in_segments_of_one_byte_costs_what_its_headers_take_at_the_lowest_rate() {
    const SEGMENTS: u32 = 65_535;
    // The headers of all segments after the first, whose header is in the packet.
    let bytes = 54 + 54 * u64::from(SEGMENTS - 1);
    for bps in [64_000, 10_000, 1_000_000_000] {
        let Some((owed, counted)) = owed_ns(bps, SEGMENTS) else { return };
        assert_eq!(counted, bytes);
        let takes = bytes * 8_000_000_000 / bps;
        // The debt shrinks while the program runs.
        let least = takes.saturating_sub(takes / 100 + 1_000_000_000);
        assert!(owed > least && owed < takes + takes / 100, "{owed} ns owed at {bps} bit/s, not {takes}");
    }
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const FRAME: u16 = 0x6558;
const TCP: u8 = 6;
const UDP: u8 = 17;

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn frame(kind: u16, packet: &[u8]) -> Vec<u8> {
    joined(&[&[2; 12], &kind.to_be_bytes(), packet])
}

fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; 20];
    (header[0], header[9]) = (0x45, protocol);
    joined(&[&header, payload])
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; 40];
    (header[0], header[6]) = (0x60, next);
    joined(&[&header, payload])
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    joined(&[&[0; 2], &port.to_be_bytes(), &[0; 4], payload])
}

/// TCP with the option of time stamps.
fn segment(data: &[u8]) -> Vec<u8> {
    let mut header = [0; 32];
    header[12] = 8 << 4;
    joined(&[&header, data])
}

fn vxlan(port: u16, head: [u8; 4], payload: &[u8]) -> Vec<u8> {
    udp(port, &joined(&[&head, &[0, 0, 7, 0], payload]))
}

fn geneve(options: u8, carries: u16, payload: &[u8]) -> Vec<u8> {
    let options_bytes = vec![0xff; 4 * usize::from(options)];
    udp(6081, &joined(&[&[options, 0], &carries.to_be_bytes(), &[0, 0, 7, 0], &options_bytes, payload]))
}

fn gre(flags: u8, carries: u16, payload: &[u8]) -> Vec<u8> {
    let options = vec![0xff; 4 * (flags >> 4).count_ones() as usize];
    joined(&[&[flags, 0], &carries.to_be_bytes(), &options, payload])
}

/// The tunnels that the program looks into, each with `inner`, an IPv4 packet, `inner_6`, an IPv6 packet, or a frame of either.
fn tunnels(inner: &[u8], inner_6: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let plain = frame(IPV4, inner);
    let tagged = joined(&[&[2; 12], &[0x81, 0, 0, 5], &IPV4.to_be_bytes(), inner]);
    let over_4 = |protocol: u8, payload: &[u8]| frame(IPV4, &ipv4(protocol, payload));
    let over_6 = |protocol: u8, payload: &[u8]| frame(IPV6, &ipv6(protocol, payload));
    // A limit of encapsulation, as the kernel's own IPv6 tunnels send it.
    let limited = joined(&[&[41, 0, 4, 1, 4, 1, 0, 0], inner_6]);
    vec![
        ("VXLAN", over_4(UDP, &vxlan(4789, [8, 0, 0, 0], &plain))),
        ("VXLAN on the kernel's port", over_4(UDP, &vxlan(8472, [8, 0, 0, 0], &plain))),
        ("VXLAN on a port of its own", over_4(UDP, &vxlan(53, [8, 0, 0, 0], &plain))),
        ("VXLAN with a tag inside", over_4(UDP, &vxlan(4789, [8, 0, 0, 0], &tagged))),
        ("VXLAN with a group", over_4(UDP, &vxlan(4789, [0x88, 0, 0x65, 0x58], &plain))),
        ("VXLAN of IPv6 over IPv6", over_6(UDP, &vxlan(4789, [8, 0, 0, 0], &frame(IPV6, inner_6)))),
        ("VXLAN-GPE of frames", over_4(UDP, &vxlan(4790, [0xc, 0, 0, 3], &plain))),
        ("VXLAN-GPE of IPv4", over_4(UDP, &vxlan(4790, [0xc, 0, 0, 1], inner))),
        ("VXLAN-GPE of IPv6", over_4(UDP, &vxlan(4790, [0xc, 0, 0, 2], inner_6))),
        ("GENEVE", over_4(UDP, &geneve(0, FRAME, &plain))),
        ("GENEVE with options", over_6(UDP, &geneve(10, FRAME, &plain))),
        ("GENEVE of IPv4", over_4(UDP, &geneve(2, IPV4, inner))),
        ("GENEVE of IPv6", over_4(UDP, &geneve(63, IPV6, inner_6))),
        ("GRE", over_4(47, &gre(0, IPV4, inner))),
        ("GRE with all options", over_4(47, &gre(0xb0, IPV6, inner_6))),
        ("GRE with a key", over_6(47, &gre(0x20, IPV4, inner))),
        ("GRE of frames", over_4(47, &gre(0, FRAME, &plain))),
        ("IPIP", over_4(4, inner)),
        ("SIT", over_4(41, inner_6)),
        ("IPv4 in IPv6", over_6(4, inner)),
        ("IPv6 in IPv6", over_6(60, &limited)),
    ]
}

/// What the program counts for a packet: TCP bytes, other bytes and packets.
fn counted(plane: &Plane, packet: &[u8], count: u32, size: u32) -> [u64; 3] {
    use partywall_sys::bpf::{test_segmented, Segmented};
    let read = || [TCP_BYTES, OTHER_BYTES, PASSED_PACKETS].map(|word| plane.state.read(word));
    let before = read();
    test_segmented(plane.program(true), packet, Segmented { count, size }).unwrap();
    let after = read();
    std::array::from_fn(|at| after[at] - before[at])
}

#[test]
fn each_segment_in_a_tunnel_costs_all_of_its_headers_and_tcp_counts_as_such() {
    let Ok(plane) = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")) else { return };
    let (segments, size) = (10, 100);
    let data = vec![0xff; segments * size];
    let tcp = segment(&data);
    for (name, packet) in tunnels(&ipv4(TCP, &tcp), &ipv6(TCP, &tcp)) {
        let bytes = (packet.len() - data.len()) * segments + data.len();
        assert_eq!(counted(&plane, &packet, segments as u32, size as u32), [bytes as u64, 0, segments as u64], "{name}");
        assert_eq!(counted(&plane, &packet, 0, 0), [packet.len() as u64, 0, 1], "{name}");
    }
    let datagram = udp(9, &data);
    for (name, packet) in tunnels(&ipv4(UDP, &datagram), &ipv6(UDP, &datagram)) {
        let bytes = (packet.len() - data.len()) * segments + data.len();
        assert_eq!(counted(&plane, &packet, segments as u32, size as u32), [0, bytes as u64, segments as u64], "{name}");
    }
}

#[test]
fn inner_headers_in_a_packet_without_a_number_of_segments_never_lower_its_cost() {
    let Ok(plane) = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")) else { return };
    // An extension header that leads behind the end of the packet.
    let beyond = joined(&[&[TCP, 255], &[0; 998]]);
    let forged = frame(IPV4, &ipv4(UDP, &vxlan(4789, [8, 0, 0, 0], &frame(IPV6, &ipv6(60, &beyond)))));
    let [_, _, packets] = counted(&plane, &forged, 0, 1);
    assert!(packets as usize >= forged.len() - 42, "{packets} packets");
    let tcp = segment(&[0xff; 1000]);
    for (name, packet) in tunnels(&ipv4(TCP, &tcp), &ipv6(TCP, &tcp)) {
        let headers = packet.len() - 1000;
        let [bytes, _, packets] = counted(&plane, &packet, 0, 100);
        assert!(packets >= 10 && packets as usize <= 10 + headers.div_ceil(100), "{name}: {packets} packets");
        assert_eq!(bytes, packet.len() as u64 + (packets - 1) * headers as u64, "{name}");
    }
}

#[test]
fn what_no_tunnel_can_be_seen_in_counts_with_its_outer_headers() {
    let Ok(plane) = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")) else { return };
    let tcp = ipv4(TCP, &segment(&[0xff; 1000]));
    let outer = 14 + 20 + 8;
    for payload in [
        udp(51820, &joined(&[&[4, 0, 0, 0], &[0xa5; 1080]])),
        vxlan(4789, [0; 4], &frame(IPV4, &tcp)),
        vxlan(4789, [8, 0, 0, 0], &frame(0x8847, &tcp)),
        geneve(0, 0x8847, &tcp),
    ] {
        let packet = frame(IPV4, &ipv4(UDP, &payload));
        assert_eq!(counted(&plane, &packet, 10, 100), [0, packet.len() as u64 + 9 * outer, 10]);
    }
    let routed = frame(IPV4, &ipv4(47, &gre(0x40, IPV4, &tcp)));
    assert_eq!(counted(&plane, &routed, 10, 100), [0, routed.len() as u64 + 9 * outer, 10]);
}

#[test]
fn a_tunnels_packet_that_ends_anywhere_is_counted() {
    let Ok(plane) = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")) else { return };
    let tcp = segment(&[0xff; 10]);
    for (name, packet) in tunnels(&ipv4(TCP, &tcp), &ipv6(TCP, &tcp)) {
        // The kernel runs no program on less than the outer headers.
        let least = if packet[12..14] == IPV4.to_be_bytes() { 34 } else { 54 };
        for end in least..packet.len() {
            let [tcp_bytes, other_bytes, packets] = counted(&plane, &packet[..end], 4, 10);
            assert!(tcp_bytes + other_bytes >= end as u64 && packets == 4, "{name} that ends after {end} bytes");
        }
    }
}

/// Runs `work` while another thread takes from a bucket, as packets do. A word that the thread moved out of the range of `work`,
/// from `within` to `beyond`, must not change.
fn stays(plane: &Plane, within: u64, beyond: u64, work: impl Fn() + Sync) {
    use std::sync::atomic::AtomicBool;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                work();
            }
        });
        let due = state_word(0, DUE);
        let lost = (0..1_000_000).find(|_| {
            plane.state.release(due, within);
            plane.state.exchange(due, within, beyond) && (0..20).any(|_| plane.state.read(due) != beyond)
        });
        ended.store(true, Ordering::Relaxed);
        assert_eq!(lost, None, "a packet was not counted");
    });
}

#[test]
fn a_packet_that_passes_while_its_bucket_is_filled_or_settled_is_counted() {
    let Ok(plane) = Plane::load(1, 0).map_err(|why| eprintln!("skipped: {why}")) else { return };
    let (now, ms) = (1 << 40, 1_000_000);
    let grant = Grant { bps: 1, pps: None, burst_ns: 10 * ms, packet_burst_ns: 0 };
    stays(&plane, (now - ms) << TIME_SHIFT, (now + ms) << TIME_SHIFT, || plane.fill(0, now, grant));
    stays(&plane, now << TIME_SHIFT, (now + 20 * ms) << TIME_SHIFT, || {
        let _ = plane.settle(0, now, 20 * ms, 20 * ms);
    });
}

proptest! {
    #[test]
    fn a_packets_cost_converts_back_to_its_rate_from_one_per_second_on(pps in 1u64..10_000_000) {
        let each = cost(pps, 1, PACKET_SHIFT);
        let rate = (UNITS_PER_SECOND << PACKET_SHIFT) as f64 / each as f64;
        prop_assert!(rate <= pps as f64 * (1.0 + 1e-9) && rate >= pps as f64 * 0.999);
    }

    #[test]
    fn a_cost_converts_back_to_its_rate_and_never_to_more(bps in 10_000u64..400_000_000_000) {
        let seconds = cost(bps, 8, COST_SHIFT) as f64 / (UNITS_PER_SECOND << COST_SHIFT) as f64;
        let rate = 8.0 / seconds;
        prop_assert!(rate <= bps as f64 * (1.0 + 1e-9) && rate >= bps as f64 * 0.999);
    }
}
