// The guard's data plane: decides for each packet, at its source, whether the vif may send it.
//
// A leaf has its own rates: it is a flow class of a vif, or all of its other packets. Each leaf has two buckets, of bytes and of
// packets, which use virtual scheduling (GCRA, ITU-T I.371). `due` is the time at which the traffic so far would have left at
// exactly the rate. A packet passes if `due` is not in the future, and then advances it by its cost. `due` never lags behind the
// clock by more than the tolerance, which is the burst. Each bucket is one word, updated by compare-and-exchange
// (`guard_bucket.h`), so CPUs never wait for each other. A packet may put a bucket into debt: a large one is delayed but never
// dropped for its size.
//
// If there is a queue behind the hook, packets may run ahead of the clock by what the queue may hold. They wait there, and their
// sender waits too, because waiting packets fill its socket buffer. An `fq` queue keeps each packet until the departure time
// that this program writes. That is when the packet's buckets would have let it pass; the queue has no rate of its own.
// On ingress, where no queue can be, packets make a detour through an interface that has one (`ifb`).
//
// Where TCP fills the queue, a packet that may not wait would always be dropped. Such packets get a small share of the leaf's rate,
// in which they wait as TCP does. Otherwise a tenant could resolve no name beside its own downloads, and a connection would stop
// when its host resolves the peer's address anew. Neighbour discovery (ARP, ICMPv6) has a share of its own.
//
// The agent writes rates into mapped memory. It also writes a heartbeat. When the heartbeat is older than the policy allows, each
// leaf falls back to its guarantee without the agent.
//
// The program classifies a packet by what its receiver reads: headers behind VLAN tags and IPv6 extension headers, and, for later
// fragments, the packet's first fragment. An unclassifiable packet counts against the tightest class that it may belong to.
//
// It looks into tunnels: each segment of a large packet repeats the inner headers too, and TCP waits in a tunnel as it does outside.
//
// It does not decide how capacity is divided.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "guard_bucket.h"

#define RULES 6
// Times are in 1/64 ns, costs of a byte in 2^-20 of that. So 100 Gb/s is exact to 0.1 % at 64 bytes, and the clock wraps after
// nine years. Costs of a packet are in 2^-8 of 1/64 ns.
#define TIME_SHIFT 6
#define COST_SHIFT 20
#define PACKET_SHIFT 8
// Maximum VLAN tags and IPv6 extension headers that the parser skips.
#define TAGS 2
#define EXTENSIONS 6
// Maximum place of a transport header: above what that many extension headers, of 2 KiB at most, lead to.
#define TRANSPORT_MAX 0x3fff
// First fragments that share a place in a vif's table.
#define WAYS 4

// The share of packets that may not wait: 1/16 of the leaf's rates, and at most 1000 packets/s, because waiting costs CPU time.
#define SHARE_SHIFT 4
#define SHARE_LEAST (1000000ULL << TIME_SHIFT)

// TC_PRIO_MAX, TC_PRIO_CONTROL and TC_PRIO_INTERACTIVE of linux/pkt_sched.h.
#define PRIORITY_MASK 15
#define PRIORITY_CONTROL 7
#define PRIORITY_INTERACTIVE 6

// Flags of the first byte of a GRE header, and the bits of its second byte that are its version; each option takes four bytes.
#define GRE_CHECKSUM 0x80
#define GRE_ROUTING 0x40
#define GRE_KEY 0x20
#define GRE_SEQUENCE 0x10
#define GRE_VERSION 7
// Of the first byte of a GENEVE header: its version, and the length of its options in words.
#define GENEVE_VERSION 0xc0
#define GENEVE_OPTIONS 0x3f
// Flags of the first byte of a VXLAN header: the network's number is valid; what else may be set; of that, that the fourth byte
// says what follows (VXLAN-GPE).
#define VXLAN_VALID 0x08
#define VXLAN_OTHERS 0x85
#define VXLAN_NEXT 0x04
#define VXLAN_IPV4 1
#define VXLAN_IPV6 2

#define VLAN_Q 0x8100
#define VLAN_AD 0x88a8
#define HEADER_MOBILITY 135
#define HEADER_HIP 139
#define HEADER_SHIM6 140

// Must match agent/crates/guard/src/plane.rs, whose tests compare each field.
struct rates {
	__u64 byte_cost; // 0: unlimited
	__u64 packet_cost;
	__u64 byte_tolerance;
	__u64 packet_tolerance;
	__u64 hold_tcp; // how far ahead of the clock packets may run, because a queue behind this hook holds them back
	__u64 hold_others;
};

struct limits {
	struct rates granted;
	struct rates fallback;
	__u64 rules[RULES]; // leaf 16 | first port 16 | last port 16 | DSCP + 1, 0 is any, 8 | protocol, 0 is any, 8
	__u64 fragments; // the vif's own table: first place in guard_fragments 32 | places 32
	__u64 detour; // interface through which packets go first, because it has a queue; 0: none
};

struct state {
	__u64 byte_due;
	__u64 packet_due;
	__u64 tcp_bytes; // that passed
	__u64 other_bytes;
	__u64 passed_packets;
	__u64 dropped_bytes;
	__u64 dropped_packets;
	__u64 marked_packets;
	__u64 departure; // the latest one assigned
	__u64 sparse_due; // of the share of packets that may not wait
	__u64 neighbour_due; // of the share of neighbour discovery
};

struct control {
	__u64 heartbeat_ns;
	__u64 stale_after_ns; // 0: never
	__u64 departures; // whether the queues are fq
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct limits);
} guard_limits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} guard_state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} guard_control SEC(".maps");

// Identifies the packet that a fragment belongs to.
struct fragment {
	__u8 addresses[32];
	__u32 identification;
	__u8 version;
	__u8 protocol; // not part of the identity in IPv6
	__u16 unused;
} __attribute__((aligned(8)));

#define FRAGMENT_WORDS (sizeof(struct fragment) / sizeof(__u64))

// The leaf of each packet's first fragment, for the fragments that follow, newest first: hash of the packet 48 | leaf 16. Each
// vif with flow classes has its own table, so that no vif evicts entries of another.
struct fragments {
	__u64 known[WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fragments);
} guard_fragments SEC(".maps");

enum part { WHOLE, FIRST, LATER };

struct flow {
	__u32 network; // where IP begins: after the link header, which a tunnel of bare IP lacks
	__u32 transport; // where the ports are, 0 if unknown
	__u32 innermost; // place of the inner transport header; equal to `transport` without a tunnel
	__u32 identification;
	__u8 version; // of IP, 0 if this is not IP
	__u8 protocol;
	__u8 innermost_protocol;
	__u8 protocol_hidden;
	__u8 traffic_class;
	__u8 part;
	__u8 neighbour; // ARP or ICMPv6
};

// A header of a packet: in place if it is contiguous, as it nearly always is; otherwise a copy.
#define HEAD(skb, offset, copy)                                                                                                   \
	({                                                                                                                        \
		void *place = (void *)(long)(skb)->data + (offset);                                                               \
		place + sizeof(copy) <= (void *)(long)(skb)->data_end		   ? place :                                      \
		bpf_skb_load_bytes(skb, offset, &(copy), sizeof(copy)) == 0 ? (void *)&(copy) :                                   \
									     (void *)0;                                           \
	})

// Reads the protocol that a receiver reads, not the one that a sender of raw frames reported to its kernel.
static __always_inline __be16 protocol_of(struct __sk_buff *skb, __u32 frame, __u32 *network)
{
	__be16 protocol, copy, *type;

	*network = frame + ETH_HLEN;
	type = HEAD(skb, frame + 2 * ETH_ALEN, copy);
	if (!type)
		return 0;
	protocol = *type;
#pragma unroll
	for (int i = 0; i < TAGS; i++) {
		if (protocol != bpf_htons(VLAN_Q) && protocol != bpf_htons(VLAN_AD))
			break;
		if (bpf_skb_load_bytes(skb, *network + 2, &protocol, sizeof(protocol)))
			return 0;
		*network += 4;
	}
	return protocol;
}

static __always_inline int is_extension(__u8 header)
{
	return header == IPPROTO_HOPOPTS || header == IPPROTO_ROUTING || header == IPPROTO_FRAGMENT || header == IPPROTO_AH ||
	       header == IPPROTO_DSTOPTS || header == HEADER_MOBILITY || header == HEADER_HIP || header == HEADER_SHIM6;
}

// Follows IPv6 extension headers from `header`, which is at `at`, to the transport header.
static __always_inline void walk(struct __sk_buff *skb, __u32 at, __u8 header, struct flow *flow)
{
	// Layout of a fragment header. All other extension headers begin with the same two bytes, and none is shorter.
	struct {
		__u8 next;
		__u8 length;
		__be16 place;
		__be32 identification;
	} extension;

#pragma unroll
	for (int i = 0; i <= EXTENSIONS; i++) {
		if (!is_extension(header)) {
			flow->protocol = header;
			flow->transport = at;
			return;
		}
		if (i == EXTENSIONS || bpf_skb_load_bytes(skb, at, &extension, sizeof(extension)))
			break;
		if (header == IPPROTO_FRAGMENT) {
			flow->identification = extension.identification;
			flow->part = extension.place & bpf_htons(0xfff8) ? LATER : extension.place & bpf_htons(1) ? FIRST : WHOLE;
			// Receivers ignore the protocol in a later fragment.
			if (flow->part == LATER)
				break;
			at += sizeof(extension);
		} else {
			at += header == IPPROTO_AH ? (extension.length + 2) * 4 : (extension.length + 1) * 8;
		}
		header = extension.next;
	}
	flow->protocol_hidden = 1;
}

// Whether the rest of the frame may be an IP packet that is not looked for: behind another VLAN tag, PPPoE or MPLS.
static __always_inline int hides(__be16 protocol)
{
	return protocol == bpf_htons(VLAN_Q) || protocol == bpf_htons(VLAN_AD) || protocol == bpf_htons(ETH_P_PPP_SES) ||
	       protocol == bpf_htons(ETH_P_MPLS_UC) || protocol == bpf_htons(ETH_P_MPLS_MC);
}

// Reads the IP header at `flow->network`, and what follows up to the transport header.
static __always_inline void parse_network(struct __sk_buff *skb, __be16 protocol, struct flow *flow)
{
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr copy, *ip = HEAD(skb, flow->network, copy);

		if (!ip || ip->version != 4)
			return;
		flow->version = 4;
		flow->protocol = ip->protocol;
		flow->traffic_class = ip->tos;
		flow->identification = ip->id;
		flow->part = ip->frag_off & bpf_htons(0x1fff) ? LATER : ip->frag_off & bpf_htons(0x2000) ? FIRST : WHOLE;
		// Only the first fragment has ports.
		flow->transport = flow->part == LATER ? 0 : flow->network + ip->ihl * 4;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr copy, *ip = HEAD(skb, flow->network, copy);

		if (!ip || ip->version != 6)
			return;
		flow->version = 6;
		flow->traffic_class = ip->priority << 4 | ip->flow_lbl[0] >> 4;
		walk(skb, flow->network + sizeof(*ip), ip->nexthdr, flow);
		flow->neighbour = flow->protocol == IPPROTO_ICMPV6;
	} else {
		flow->neighbour = protocol == bpf_htons(ETH_P_ARP);
		flow->protocol_hidden = hides(protocol);
	}
}

// The beginning of a header of GRE, or of VXLAN or GENEVE, which are in UDP.
struct tunnel {
	__u8 flags;
	__u8 version;
	__be16 protocol;
};

static __always_inline int is_geneve(const struct tunnel *tunnel)
{
	__be16 type = tunnel->protocol;

	return !(tunnel->flags & GENEVE_VERSION) && (type == bpf_htons(ETH_P_TEB) || type == bpf_htons(ETH_P_IP) || type == bpf_htons(ETH_P_IPV6));
}

static __always_inline int is_vxlan(const struct tunnel *tunnel)
{
	return (tunnel->flags & ~VXLAN_OTHERS) == VXLAN_VALID;
}

// Whether the transport header may be a tunnel's. A call costs more than this look at UDP, which most datagrams fail.
//
// Headers in UDP are recognised on any port, because a tenant chooses the port. Other data that looks like such a header does no
// harm: it seldom leads to a TCP header, and a forged header only makes the packet count as more bytes.
static __always_inline int may_carry(struct __sk_buff *skb, const struct flow *flow)
{
	const struct tunnel *tunnel = (void *)(long)skb->data + flow->transport + sizeof(struct udphdr);

	if (!flow->transport)
		return 0;
	if (flow->protocol != IPPROTO_UDP)
		return flow->protocol == IPPROTO_GRE || flow->protocol == IPPROTO_IPIP || flow->protocol == IPPROTO_IPV6;
	return (void *)(tunnel + 1) > (void *)(long)skb->data_end || is_vxlan(tunnel) || is_geneve(tunnel);
}

// Where the packet that a tunnel carries begins, and its EtherType, which is ETH_P_TEB for a frame. 0 if this is not a known tunnel.
static __always_inline __be16 carried(struct __sk_buff *skb, __u8 protocol, __u32 *at)
{
	struct tunnel copy, *tunnel;
	__u8 flags;
	__be16 type;

	if (protocol == IPPROTO_IPIP)
		return bpf_htons(ETH_P_IP);
	if (protocol == IPPROTO_IPV6)
		return bpf_htons(ETH_P_IPV6);
	if (protocol == IPPROTO_UDP)
		*at += sizeof(struct udphdr);
	tunnel = HEAD(skb, *at, copy);
	if (!tunnel)
		return 0;
	flags = tunnel->flags;
	type = tunnel->protocol;
	if (protocol == IPPROTO_GRE) {
		if (flags & GRE_ROUTING || tunnel->version & GRE_VERSION)
			return 0;
		*at += 4 * (1 + !!(flags & GRE_CHECKSUM) + !!(flags & GRE_KEY) + !!(flags & GRE_SEQUENCE));
		return type;
	}
	*at += 8;
	if (is_geneve(tunnel)) {
		*at += 4 * (flags & GENEVE_OPTIONS);
		return type;
	}
	if (!is_vxlan(tunnel))
		return 0;
	if (flags & VXLAN_NEXT && type == bpf_htons(VXLAN_IPV4))
		return bpf_htons(ETH_P_IP);
	if (flags & VXLAN_NEXT && type == bpf_htons(VXLAN_IPV6))
		return bpf_htons(ETH_P_IPV6);
	return bpf_htons(ETH_P_TEB);
}

// Finds the inner transport header of a tunnel, whose own header is at `at`. Returns its place and protocol as (place << 8 | protocol),
// or 0 if there is none.
//
// Looks into one tunnel. No segmented packet is in two: the kernel cuts it before it enters the second. Global, so that the kernel
// verifies it once and not for each way to a call.
__attribute__((noinline)) __u32 innermost_of(struct __sk_buff *skb, __u32 at, __u32 protocol)
{
	struct flow inner = {};
	__be16 type;

	if (at > TRANSPORT_MAX)
		return 0;
	type = carried(skb, protocol, &at);
	inner.network = at;
	if (type == bpf_htons(ETH_P_TEB))
		type = protocol_of(skb, at, &inner.network);
	parse_network(skb, type, &inner);
	return inner.transport ? inner.transport << 8 | inner.protocol : 0;
}

static __always_inline void parse(struct __sk_buff *skb, __u32 link, struct flow *flow)
{
	__be16 protocol = skb->protocol;
	__u32 inner;

	__builtin_memset(flow, 0, sizeof(*flow));
	if (link)
		protocol = protocol_of(skb, 0, &flow->network);
	parse_network(skb, protocol, flow);
	flow->innermost = flow->transport;
	flow->innermost_protocol = flow->protocol;
	inner = !may_carry(skb, flow) ? 0 : innermost_of(skb, flow->transport, flow->protocol);
	if (inner) {
		flow->innermost = inner >> 8;
		flow->innermost_protocol = inner;
	}
}

static __always_inline int within(__u16 port, __u16 first, __u16 last)
{
	return port >= first && port <= last;
}

static __always_inline __u64 later(__u64 one, __u64 other)
{
	return one > other ? one : other;
}

static __always_inline int congested(const __u64 *due, __u64 now, __u64 tolerance)
{
	return *due + tolerance / 2 > now;
}

// Marks a packet of an ECN-capable sender, so that it slows down (RFC 3168) before packets are dropped.
static __always_inline int mark(struct __sk_buff *skb, const struct flow *flow)
{
	__u8 ecn = flow->traffic_class & 3;

	if (!flow->version || !ecn || ecn == 3)
		return 0;
	if (flow->version == 4) {
		__u8 marked = flow->traffic_class | 3;

		bpf_l3_csum_replace(skb, flow->network + 10, bpf_htons(flow->traffic_class), bpf_htons(marked), 2);
		bpf_skb_store_bytes(skb, flow->network + 1, &marked, 1, 0);
	} else {
		// The traffic class spans two bytes, and no checksum covers it.
		__u8 second;

		if (bpf_skb_load_bytes(skb, flow->network + 1, &second, 1))
			return 0;
		second |= 0x30;
		bpf_skb_store_bytes(skb, flow->network + 1, &second, 1, 0);
	}
	return 1;
}

// Also in a tunnel.
static __always_inline int is_tcp(const struct flow *flow)
{
	return flow->innermost_protocol == IPPROTO_TCP;
}

// Of a packet that is cut later: its segments 32 | bytes of the headers that each repeats 32. Global as `innermost_of` is.
__attribute__((noinline)) __u64 segments_of(struct __sk_buff *skb, __u32 transport, __u32 innermost, __u32 protocol)
{
	__u32 headers = innermost + sizeof(struct udphdr), size = skb->gso_size, segments = skb->gso_segs, sure;
	__u8 offset = 0;

	if (innermost && protocol == IPPROTO_TCP && !bpf_skb_load_bytes(skb, innermost + 12, &offset, 1))
		headers = innermost + (offset >> 4) * 4;
	// Packets from a virtual machine do not contain their number of segments. Inner headers may be forged data, so they do not
	// lower it.
	sure = innermost == transport ? headers : transport;
	if (!segments)
		segments = size && skb->len > sure ? (skb->len - sure + size - 1) / size : 1;
	return (__u64)segments << 32 | headers;
}

// A packet's cost on the link: a large packet is cut into segments, each of which repeats the headers.
struct cost {
	__u64 packets;
	__u64 bytes; // without preamble and frame check sequence
};

static __always_inline struct cost cost_of(struct __sk_buff *skb, const struct flow *flow)
{
	struct cost cost = { .packets = 1, .bytes = skb->len };
	__u64 segments;

	if (!skb->gso_size)
		return cost;
	segments = segments_of(skb, flow->transport, flow->innermost, flow->innermost_protocol);
	cost.packets = segments >> 32;
	cost.bytes += (cost.packets - 1) * (__u32)segments;
	return cost;
}

static __always_inline int is_fitting(__u64 rule, const struct flow *flow, const __be16 *ports)
{
	__u16 first = rule >> 16, last = rule >> 32;
	__u8 dscp = rule >> 48, protocol = rule >> 56;

	if (protocol && protocol != flow->protocol)
		return 0;
	if (dscp && dscp - 1 != flow->traffic_class >> 2)
		return 0;
	return !last || within(bpf_ntohs(ports[0]), first, last) || within(bpf_ntohs(ports[1]), first, last);
}

// The leaf of the first matching rule, or the vif's own leaf if none matches.
static __always_inline __u32 fitting(const struct limits *vif, const struct flow *flow, const __be16 *ports, __u32 own)
{
#pragma unroll
	for (int i = 0; i < RULES; i++) {
		if (!vif->rules[i])
			return own;
		if (is_fitting(vif->rules[i], flow, ports))
			return vif->rules[i] & 0xffff;
	}
	return own;
}

// The time in which a leaf earns a packet, at its granted rates.
static __always_inline __u64 earning(__u32 leaf, const struct cost *cost)
{
	struct limits *limits = bpf_map_lookup_elem(&guard_limits, &leaf);
	__u64 bytes, packets;

	if (!limits)
		return 0;
	bytes = taken(cost->bytes, limits->granted.byte_cost, COST_SHIFT);
	packets = taken(cost->packets, limits->granted.packet_cost, PACKET_SHIFT);
	return bytes > packets ? bytes : packets;
}

// For a packet with unknown ports or protocol: the leaf that takes longest to earn it, of the rules that may match, and of the vif's
// own leaf if none need match.
static __always_inline __u32 tightest(const struct limits *vif, const struct flow *flow, const struct cost *cost, __u32 own)
{
	__u32 found = 0;
	__u64 longest = 0;

#pragma unroll
	for (int i = 0; i < RULES; i++) {
		__u64 rule = vif->rules[i], takes;
		__u16 last = rule >> 32;
		__u8 dscp = rule >> 48, protocol = rule >> 56;
		__u32 leaf = rule & 0xffff;

		if (!rule)
			break;
		if (protocol && !flow->protocol_hidden && protocol != flow->protocol)
			continue;
		if (dscp && flow->version && dscp - 1 != flow->traffic_class >> 2)
			continue;
		takes = earning(leaf, cost);
		if (!found || takes > longest) {
			found = leaf;
			longest = takes;
		}
		// The rule matches regardless of the unknown fields, so later rules do not apply.
		if (!last && !(protocol && flow->protocol_hidden) && !(dscp && !flow->version))
			return found;
	}
	return !found || earning(own, cost) > longest ? own : found;
}

// A hash of the packet that a fragment belongs to; 0 if it cannot be determined.
static __always_inline __u64 packet_of(struct __sk_buff *skb, const struct flow *flow)
{
	struct fragment key = { .identification = flow->identification, .version = flow->version };
	const __u64 *words = (const __u64 *)&key;
	__u64 hash = 0;

	if (flow->version == 4) {
		key.protocol = flow->protocol;
		if (bpf_skb_load_bytes(skb, flow->network + 12, key.addresses, 8))
			return 0;
	} else if (bpf_skb_load_bytes(skb, flow->network + 8, key.addresses, 32)) {
		return 0;
	}
#pragma unroll
	for (int i = 0; i < FRAGMENT_WORDS; i++) {
		// 2^64 divided by the golden ratio: the high bits of the product depend on all input bits.
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 32;
	}
	return hash;
}

static __always_inline struct fragments *place_of(const struct limits *vif, __u64 packet)
{
	__u32 first = vif->fragments, places = vif->fragments >> 32, at;

	if (!packet || !places)
		return 0;
	at = first + (__u32)packet % places;
	return bpf_map_lookup_elem(&guard_fragments, &at);
}

static __always_inline int is_of(__u64 known, __u64 packet)
{
	return known && !((known ^ packet) >> 16);
}

// The leaf of the first fragment of `packet`; 0 if it is not known.
static __always_inline __u32 recalled(const struct limits *vif, __u64 packet)
{
	struct fragments *place = place_of(vif, packet);

	if (!place)
		return 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		__u64 known = place->known[i];

		if (is_of(known, packet))
			return known & 0xffff;
	}
	return 0;
}

// Puts the packet first. Entries before its own move back by one; if it has none, the oldest is dropped. If two CPUs do this
// at once, each may evict one.
static __always_inline void remember(const struct limits *vif, __u64 packet, __u32 leaf)
{
	struct fragments *place = place_of(vif, packet);
	__u64 moved = packet >> 16 << 16 | leaf;

	if (!place)
		return;
#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		__u64 known = place->known[i];

		place->known[i] = moved;
		if (is_of(known, packet))
			break;
		moved = known;
	}
}

static __always_inline __u32 classify(struct __sk_buff *skb, const struct limits *vif, const struct flow *flow,
				      const struct cost *cost, __u32 own)
{
	int ported = flow->protocol == IPPROTO_TCP || flow->protocol == IPPROTO_UDP, told;
	__u64 packet = 0;
	__be16 ports[2] = {};
	__u32 leaf;

	if (!vif->rules[0])
		return own;
	if (flow->part != WHOLE)
		packet = packet_of(skb, flow);
	if (flow->part == LATER) {
		leaf = recalled(vif, packet);
		if (leaf)
			return leaf;
	}
	told = !flow->protocol_hidden && (!ported || (flow->transport && !bpf_skb_load_bytes(skb, flow->transport, ports, sizeof(ports))));
	leaf = told ? fitting(vif, flow, ports, own) : tightest(vif, flow, cost, own);
	// Receivers ignore a first fragment that is sent again. It must not move the rest of the packet to a faster class.
	if (flow->part == FIRST) {
		__u32 before = recalled(vif, packet);

		remember(vif, packet, before && earning(before, cost) > earning(leaf, cost) ? before : leaf);
	}
	return leaf;
}

// Whether a bucket is further ahead of the clock than `hold`.
static __always_inline int is_ahead(const __u64 *due, __u64 now, __u64 hold)
{
	return *(const volatile __u64 *)due > now + hold;
}

// How far ahead of the clock a packet may run.
static __always_inline __u64 hold_of(struct state *state, const struct rates *rates, const struct flow *flow, __u64 now,
				     const struct cost *cost)
{
	__u64 *due = flow->neighbour ? &state->neighbour_due : &state->sparse_due;
	__u64 tolerance = later(rates->byte_tolerance, rates->packet_tolerance), hold = rates->hold_tcp, takes;

	if (is_tcp(flow))
		return hold;
	// Without a queue, a connection needs its neighbours too.
	if (flow->neighbour)
		hold = later(hold, tolerance);
	if (hold <= rates->hold_others)
		return rates->hold_others;
	if (!is_ahead(&state->byte_due, now, rates->hold_others) && !is_ahead(&state->packet_due, now, rates->hold_others))
		return rates->hold_others;
	takes = later(taken(cost->bytes, rates->byte_cost, COST_SHIFT), taken(cost->packets, rates->packet_cost, PACKET_SHIFT));
	takes = later(takes << SHARE_SHIFT, SHARE_LEAST);
	// The last packet of TCP may be a large one, and brings the bucket further ahead than `hold`.
	return take(due, now, tolerance, 0, takes) ? 2 * hold : rates->hold_others;
}

static __always_inline int leads_away(const struct __sk_buff *skb, const struct limits *limits)
{
	return limits->detour && limits->detour != skb->ifindex;
}

static __always_inline int decide(struct __sk_buff *skb, __u32 link)
{
	__u32 zero = 0, own = skb->tc_classid, leaf;
	struct control *control = bpf_map_lookup_elem(&guard_control, &zero);
	struct limits *limits = bpf_map_lookup_elem(&guard_limits, &own);
	struct state *state;
	const struct rates *rates;
	struct flow flow;
	__u64 now_ns, now, bytes, packets, hold, at, departure;
	struct cost cost;
	int tcp;

	if (!control || !limits)
		return TC_ACT_UNSPEC;
	// On ingress there is no queue. This program then decides at the other interface, where `guard_lead` leads packets to.
	if (leads_away(skb, limits))
		return TC_ACT_UNSPEC;
	parse(skb, link, &flow);
	cost = cost_of(skb, &flow);
	leaf = classify(skb, limits, &flow, &cost, own);
	if (leaf != own) {
		limits = bpf_map_lookup_elem(&guard_limits, &leaf);
		if (!limits)
			return TC_ACT_UNSPEC;
	}
	state = bpf_map_lookup_elem(&guard_state, &leaf);
	if (!state)
		return TC_ACT_UNSPEC;

	now_ns = bpf_ktime_get_ns();
	now = now_ns << TIME_SHIFT;
	packets = cost.packets;
	bytes = cost.bytes;
	tcp = is_tcp(&flow);
	rates = control->stale_after_ns && now_ns > control->heartbeat_ns + control->stale_after_ns ? &limits->fallback
												    : &limits->granted;
	hold = hold_of(state, rates, &flow, now, &cost);
	departure = now;

	if (rates->packet_cost) {
		at = take(&state->packet_due, now, rates->packet_tolerance, hold, taken(packets, rates->packet_cost, PACKET_SHIFT));
		if (!at)
			goto drop;
		departure = later(departure, at);
	}
	if (rates->byte_cost) {
		at = take(&state->byte_due, now, rates->byte_tolerance, hold, taken(bytes, rates->byte_cost, COST_SHIFT));
		if (!at) {
			if (rates->packet_cost)
				__sync_fetch_and_sub(&state->packet_due, taken(packets, rates->packet_cost, PACKET_SHIFT));
			goto drop;
		}
		departure = later(departure, at);
		// A queue slows its sender down without marks.
		if (!hold && congested(&state->byte_due, now, rates->byte_tolerance) && mark(skb, &flow))
			__sync_fetch_and_add(&state->marked_packets, packets);
	}
	// Overwrite the time even if the packet does not wait: a sender with its own times could let a whole second's grant pass at
	// once. There is a queue wherever TCP may wait. The clock type need not be set: fq ignores it, and the kernel clears a time
	// without a clock type when a packet enters another namespace.
	if (control->departures && rates->hold_tcp) {
		skb->tstamp = departure >> TIME_SHIFT;
		raise_to(&state->departure, departure);
		// fq sends packets of this priority at once, regardless of their time.
		if ((skb->priority & PRIORITY_MASK) == PRIORITY_CONTROL)
			skb->priority = PRIORITY_INTERACTIVE;
	}
	__sync_fetch_and_add(tcp ? &state->tcp_bytes : &state->other_bytes, bytes);
	__sync_fetch_and_add(&state->passed_packets, packets);
	return TC_ACT_UNSPEC;

drop:
	__sync_fetch_and_add(&state->dropped_bytes, bytes);
	__sync_fetch_and_add(&state->dropped_packets, packets);
	return TC_ACT_SHOT;
}

// Fixed per interface, because nothing in a packet shows where IP begins.
SEC("classifier")
int guard(struct __sk_buff *skb)
{
	return decide(skb, ETH_HLEN);
}

SEC("classifier")
int guard_bare(struct __sk_buff *skb)
{
	return decide(skb, 0);
}

// Hooked behind `guard` on ingress, with the kernel's own redirection as its action, which every packet that this program matches
// gets. An ifb drops packets of bpf_redirect on kernels that do not mark these as redirected, such as 6.1.
SEC("classifier")
int guard_lead(struct __sk_buff *skb)
{
	__u32 own = skb->tc_classid;
	struct limits *limits = bpf_map_lookup_elem(&guard_limits, &own);

	return limits && leads_away(skb, limits) ? -1 : 0;
}

char LICENSE[] SEC("license") = "GPL";
