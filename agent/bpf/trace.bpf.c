// The packet tracer: each hook writes one record of tag and time. Each place on the path has its own program, because nothing in
// a packet distinguishes two interfaces in two namespaces. It passes every packet unchanged.
//
// A packet's tag is the same at all hops: it excludes what checksum offload, a router, a VLAN switch or NAT changes.
// For TCP with data, the tag is the sequence number; bytes are matched, so segments may be cut and joined. For UDP of Partywall's
// senders, it is the marker in the payload. For other packets, it is a hash of the identification and the start of the payload.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PLACES 16
#define KNOWN_SETS 2048
#define KNOWN_WAYS 4
// Addresses that a CPU may write for each record that it writes, 1 in so many, and how many it may write at once.
#define RECORDS_AN_ADDRESS 8
#define ADDRESSES_AT_ONCE 8192
#define TRANSLATIONS 4

#define KIND_WHOLE 0ull
#define KIND_RANGE 1ull

// The first bytes of a marked payload: "PWALLTAG", then a counter.
#define MARKER_MAGIC bpf_cpu_to_be64(0x5057414c4c544147ull)

#define VLAN_Q 0x8100
#define VLAN_AD 0x88a8
// NOP, NOP, timestamp, 10 bytes: the layout of TCP timestamps on nearly every system.
#define TIMESTAMP_LAYOUT 0x0101080a

struct record {
	__u64 time_ns;
	__u64 flow;
	__u64 tag;
	// Bytes of payload in the low 32 bits, then 8 bits of kind, then 8 of place.
	__u64 what;
};

struct end {
	__u64 high;
	__u64 low;
	__u16 port;
	__u16 zero[3];
};

struct tuple {
	struct end from;
	struct end to;
	__u8 protocol;
	__u8 zero[7];
};

struct count {
	__u64 recorded;
	__u64 lost;
	__u64 untraced;
	__u64 met; // all packets, recorded or not
	__u64 counted; // packets of traced flows, as segments on the wire
	__u64 spare[3]; // so that each is in one cache line
};

// Per-CPU state shared by kernel and agent, in addition to the ring. Each cache line has a single writer, to avoid false sharing.
struct cpu {
	__u64 written;
	// The number of records that has paid for all addresses written.
	__u64 paid;
	__u64 unused[6];
	__u64 taken;
	// Flows are skipped if the upper half of their hash is not below this.
	__u64 sampled_below;
	__u64 spare[6];
	struct count counts[PLACES];
};

struct translation {
	struct end outside;
	struct end inside;
};

const volatile __u32 ring_records = 1024;
// Of 2^32 values, those for which a packet is recorded; others are only counted.
const volatile __u64 recorded_below = 1ull << 32;
const volatile __u8 link_header[PLACES] = {};
const volatile __u8 only_protocol = 0;
const volatile __u16 only_port = 0;
const volatile __u64 only_high = 0;
const volatile __u64 only_low = 0;
const volatile __u32 translations = 0;
// Whether packets are translated or left out by their addresses, ports or protocol.
const volatile __u8 looks_at_addresses = 0;
const volatile struct translation translated[TRANSLATIONS] = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct record);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

// The addresses of each flow's hash. `known` holds flows that were seen recently, so that most packets need no look at them. There,
// a flow is in one of the ways of its set, as the upper half of its hash.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct tuple);
} flows SEC(".maps");

struct set {
	__u32 flows[KNOWN_WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KNOWN_SETS);
	__type(key, __u32);
	__type(value, struct set);
} known SEC(".maps");

// What is known of a packet apart from its addresses.
struct head {
	__u64 tag;
	__u32 length;
	__u64 kind;
};

struct packet {
	struct tuple tuple;
	struct head head;
};

static __always_inline __u64 mixed(__u64 key)
{
	key = (key ^ (key >> 32)) * 0xd6e8feb86659fd93ull;
	key = (key ^ (key >> 32)) * 0xd6e8feb86659fd93ull;
	return key ^ (key >> 32);
}

static __always_inline __u64 flow_of(const struct tuple *t)
{
	// Independent products, so that the processor computes them in parallel; mixed once.
	__u64 ports = (__u64)t->from.port << 24 | (__u64)t->to.port << 8 | t->protocol;
	__u64 from = t->from.high * 0x9e3779b97f4a7c15ull + t->from.low * 0xff51afd7ed558ccdull;
	__u64 to = t->to.high * 0xc4ceb9fe1a85ec53ull + t->to.low * 0xbf58476d1ce4e5b9ull;

	return mixed(from + (to ^ to >> 29) + ports * 0x94d049bb133111ebull);
}

// The first 16 bytes of a payload, which may be outside the linear part; zeros beyond its end.
static __always_inline void head_of(struct __sk_buff *skb, __u32 offset, __u32 length, __u64 *head)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	head[0] = head[1] = 0;
	if (length >= 16) {
		__u64 *direct = data + offset;

		if (offset < 256 && (void *)(direct + 2) <= end) {
			head[0] = direct[0];
			head[1] = direct[1];
		} else {
			bpf_skb_load_bytes(skb, offset, head, 16);
		}
	} else if (length >= 8) {
		bpf_skb_load_bytes(skb, offset, head, 8);
	} else if (length >= 4) {
		bpf_skb_load_bytes(skb, offset, head, 4);
	}
}

// The number in a marked payload, or a hash of what a payload of this length begins with.
static __always_inline __u64 datagram_tag(const __u64 *head, __u32 length, __u64 identification)
{
	if (head[0] == MARKER_MAGIC)
		return bpf_be64_to_cpu(head[1]);
	return mixed(mixed(head[0] + identification) ^ head[1] ^ (__u64)length << 48);
}

static __always_inline void hashed(struct __sk_buff *skb, struct packet *p, __u32 offset, __u32 length, __u64 more)
{
	__u64 head[2];

	head_of(skb, offset, length, head);
	p->head.tag = mixed(mixed(head[0] + more) ^ head[1] ^ (__u64)length << 48);
	p->head.length = length;
	p->head.kind = KIND_WHOLE;
}

static __always_inline int tcp(struct __sk_buff *skb, struct packet *p, __u32 offset, __u32 length, __u64 identification)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *header = data + offset;
	__u32 *options, stamp = 0, header_bytes;

	if (offset > 256 || (void *)(header + 1) > end)
		return -1;
	header_bytes = header->doff * 4;
	if (length < header_bytes)
		return -1;
	p->tuple.from.port = header->source;
	p->tuple.to.port = header->dest;
	options = (void *)(header + 1);
	if (header->doff >= 8 && (void *)(options + 2) <= end && options[0] == bpf_htonl(TIMESTAMP_LAYOUT))
		stamp = bpf_ntohl(options[1]);
	p->head.length = length - header_bytes;
	if (p->head.length) {
		p->head.tag = (__u64)stamp << 32 | bpf_ntohl(header->seq);
		p->head.kind = KIND_RANGE;
	} else {
		// Many acknowledgements share a sequence number.
		__u64 numbers = (__u64)header->seq << 32 | header->ack_seq;
		__u64 rest = (__u64)((__u32 *)header)[3] << 32 | stamp;

		p->head.tag = mixed(mixed(numbers) ^ rest ^ identification << 16);
		p->head.kind = KIND_WHOLE;
	}
	return 0;
}

static __always_inline int udp(struct __sk_buff *skb, struct packet *p, __u32 offset, __u32 length, __u64 identification)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct udphdr *header = data + offset;
	__u64 head[2];

	if (offset > 256 || (void *)(header + 1) > end || length < sizeof(*header))
		return -1;
	p->tuple.from.port = header->source;
	p->tuple.to.port = header->dest;
	length -= sizeof(*header);
	head_of(skb, offset + sizeof(*header), length, head);
	p->head.length = length;
	p->head.kind = KIND_WHOLE;
	p->head.tag = datagram_tag(head, length, identification);
	return 0;
}

static __always_inline int transport(struct __sk_buff *skb, struct packet *p, __u32 offset, __u32 length, __u64 identification)
{
	switch (p->tuple.protocol) {
	case IPPROTO_TCP:
		return tcp(skb, p, offset, length, identification);
	case IPPROTO_UDP:
		return udp(skb, p, offset, length, identification);
	}
	// Skip the word with ICMP's checksum.
	if (length < 4)
		return -1;
	hashed(skb, p, offset + 4, length - 4, identification);
	return 0;
}

static __always_inline int ip4(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + offset;
	__u32 header_bytes, length;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return -1;
	header_bytes = ip->ihl * 4;
	// A total length of 0 means a segment above 64 KiB.
	length = ip->tot_len ? bpf_ntohs(ip->tot_len) : skb->len - offset;
	if (length < header_bytes)
		return -1;
	length -= header_bytes;
	p->tuple.from.low = 0xffff00000000ull | bpf_ntohl(ip->saddr);
	p->tuple.to.low = 0xffff00000000ull | bpf_ntohl(ip->daddr);
	p->tuple.protocol = ip->protocol;
	if (ip->frag_off & bpf_htons(0x3fff)) {
		// Only the first fragment has ports. The tuple omits them, so that all fragments belong to one flow.
		hashed(skb, p, offset + header_bytes, length, (__u64)ip->id << 16 | (ip->frag_off & bpf_htons(0x1fff)));
		return 0;
	}
	return transport(skb, p, offset + header_bytes, length, ip->id);
}

static __always_inline int ip6(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip = data + offset;
	__u32 length;

	if ((void *)(ip + 1) > end || ip->version != 6)
		return -1;
	length = ip->payload_len ? bpf_ntohs(ip->payload_len) : skb->len - offset - sizeof(*ip);
	p->tuple.from.high = (__u64)bpf_ntohl(ip->saddr.in6_u.u6_addr32[0]) << 32 | bpf_ntohl(ip->saddr.in6_u.u6_addr32[1]);
	p->tuple.from.low = (__u64)bpf_ntohl(ip->saddr.in6_u.u6_addr32[2]) << 32 | bpf_ntohl(ip->saddr.in6_u.u6_addr32[3]);
	p->tuple.to.high = (__u64)bpf_ntohl(ip->daddr.in6_u.u6_addr32[0]) << 32 | bpf_ntohl(ip->daddr.in6_u.u6_addr32[1]);
	p->tuple.to.low = (__u64)bpf_ntohl(ip->daddr.in6_u.u6_addr32[2]) << 32 | bpf_ntohl(ip->daddr.in6_u.u6_addr32[3]);
	p->tuple.protocol = ip->nexthdr;
	if (ip->nexthdr == IPPROTO_FRAGMENT && length >= 4) {
		// The fragment header holds offset and identification, and the hash starts with that header.
		hashed(skb, p, offset + sizeof(*ip), length, 0);
		return 0;
	}
	return transport(skb, p, offset + sizeof(*ip), length, 0);
}

static __always_inline int parsed(struct __sk_buff *skb, __u32 place, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 protocol = skb->protocol, offset = 0;

	if (link_header[place & (PLACES - 1)]) {
		struct ethhdr *ethernet = data;

		if ((void *)(ethernet + 1) > end)
			return -1;
		protocol = ethernet->h_proto;
		offset = sizeof(*ethernet);
#pragma unroll
		for (int tags = 0; tags < 2; tags++) {
			if (protocol != bpf_htons(VLAN_Q) && protocol != bpf_htons(VLAN_AD))
				break;
			if (data + offset + 4 > end)
				return -1;
			protocol = *(__u16 *)(data + offset + 2);
			offset += 4;
		}
	}
	if (protocol == bpf_htons(ETH_P_IP))
		return ip4(skb, p, offset);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return ip6(skb, p, offset);
	return -1;
}

static __always_inline int is_end(const struct end *one, const volatile struct end *other)
{
	return one->low == other->low && one->high == other->high && (!other->port || one->port == other->port);
}

static __always_inline void translate(struct end *end)
{
#pragma unroll
	for (int at = 0; at < TRANSLATIONS; at++) {
		if (at >= translations || !is_end(end, &translated[at].outside))
			continue;
		end->high = translated[at].inside.high;
		end->low = translated[at].inside.low;
		if (translated[at].inside.port)
			end->port = translated[at].inside.port;
		return;
	}
}

static __always_inline int wanted(const struct tuple *t)
{
	if (only_protocol && t->protocol != only_protocol)
		return 0;
	if (only_port && t->from.port != only_port && t->to.port != only_port)
		return 0;
	if ((only_high | only_low) && !(t->from.low == only_low && t->from.high == only_high) &&
	    !(t->to.low == only_low && t->to.high == only_high))
		return 0;
	return 1;
}

// Whether a packet is recorded, which is the same at all hops. Data of TCP is chosen by its timestamp, which remains when segments are
// cut and joined; without timestamps, all of it is.
static __always_inline int is_chosen(const struct head *h)
{
	__u64 key = h->kind == KIND_RANGE ? h->tag >> 32 : h->tag;

	return key * 0x9e3779b97f4a7c15ull >> 32 < recorded_below;
}

// Segments of a packet on the wire, which neither a card nor the receiver changes by splitting or joining. Guests do not set gso_segs.
static __always_inline __u64 segments(const struct __sk_buff *skb, const struct head *h)
{
	if (!skb->gso_size)
		return 1;
	if (skb->gso_segs)
		return skb->gso_segs;
	return (h->length + (__u64)skb->gso_size - 1) / skb->gso_size;
}

// Whether a CPU may look for a flow's addresses, and write them. It costs several records, so with more flows than `known` holds, only
// some packets pay for it. The addresses of a flow are then written later.
static __always_inline int may_write(struct cpu *cpu)
{
	__u64 paid = cpu->paid > cpu->written ? cpu->paid : cpu->written;

	if (paid - cpu->written >= ADDRESSES_AT_ONCE * RECORDS_AN_ADDRESS)
		return 0;
	cpu->paid = paid + RECORDS_AN_ADDRESS;
	return 1;
}

static __always_inline void remember(struct cpu *cpu, __u64 flow, const struct tuple *t)
{
	__u32 at = flow & (KNOWN_SETS - 1), name = flow >> 32;
	struct set *set = bpf_map_lookup_elem(&known, &at);
	__s64 found = 0;

	if (!set)
		return;
	// Negative if one is equal. The processor could not predict a branch for each way.
#pragma unroll
	for (int way = 0; way < KNOWN_WAYS; way++)
		found |= (__s64)(set->flows[way] ^ name) - 1;
	if (found < 0)
		return;
	// To look one up costs a fraction of writing it.
	if (may_write(cpu) && (bpf_map_lookup_elem(&flows, &flow) || !bpf_map_update_elem(&flows, &flow, t, BPF_ANY)))
		set->flows[cpu->written & (KNOWN_WAYS - 1)] = name;
}

// Writes a record. Returns false if the ring is full.
static __always_inline int record(struct cpu *cpu, struct count *count, __u32 place, __u64 flow, const struct head *h)
{
	// tc runs with bottom halves off, so a CPU writes one record at a time. The agent refuses PREEMPT_RT, where this need not hold.
	__u64 at = cpu->written;
	__u32 index = bpf_get_smp_processor_id() * ring_records + (at & (ring_records - 1));
	struct record *record;

	if (at - *(volatile __u64 *)&cpu->taken >= ring_records) {
		count->lost++;
		return 0;
	}
	record = bpf_map_lookup_elem(&rings, &index);
	if (!record)
		return 0;
	record->flow = flow;
	record->tag = h->tag;
	record->what = h->length | h->kind << 32 | (__u64)place << 40;
	record->time_ns = bpf_ktime_get_ns();
	count->recorded++;
	// A reader that sees the new position must also see the record. If the processor keeps stores in order (STORES_IN_ORDER, see
	// build.rs), only the compiler must not reorder them. Kernels before 5.12 have no exchange instruction, so this form loads there
	// too. On other processors an exchange is a full barrier; an addition whose result is unused is not.
#ifdef STORES_IN_ORDER
	asm volatile("" ::: "memory");
	*(volatile __u64 *)&cpu->written = at + 1;
#else
	__sync_lock_test_and_set(&cpu->written, at + 1);
#endif
	return 1;
}

// A packet is counted without a look at its addresses, unless flows are sampled, or addresses decide whether it is traced.
static __always_inline int is_only_counted(const struct cpu *cpu, const struct head *h)
{
	return !is_chosen(h) && !looks_at_addresses && cpu->sampled_below > 0xffffffff;
}

static __always_inline void follow(struct __sk_buff *skb, struct cpu *cpu, struct count *count, __u32 place, struct tuple *t,
				   const struct head *h)
{
	__u64 flow;

	if (translations) {
		translate(&t->from);
		translate(&t->to);
	}
	if (!wanted(t))
		return;
	flow = flow_of(t);
	if (flow >> 32 >= cpu->sampled_below)
		return;
	count->counted += segments(skb, h);
	if (is_chosen(h) && record(cpu, count, place, flow, h))
		remember(cpu, flow, t);
}

// The IP header of a plain packet, and its head: IPv4 without options, VLAN tags or fragments, and in it a datagram of 16 bytes or more,
// or a segment with data and a timestamp. Nearly all packets are plain, and `parsed` takes several times as long to find the same.
static __always_inline struct iphdr *plain(struct __sk_buff *skb, __u32 place, struct head *h)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 has_link_header = link_header[place & (PLACES - 1)], length;
	struct iphdr *ip = data + (has_link_header ? sizeof(struct ethhdr) : 0);
	__u32 *rest = (void *)(ip + 1);
	__u64 *payload = (void *)(rest + 2);

	// A segment's timestamp ends later than what is read of a payload.
	if ((void *)(rest + 7) > end)
		return 0;
	if ((has_link_header ? *(__u16 *)(data + offsetof(struct ethhdr, h_proto)) : skb->protocol) != bpf_htons(ETH_P_IP))
		return 0;
	// A total length of 0 becomes one above all others.
	length = bpf_ntohs(ip->tot_len) - sizeof(*ip);
	if (*(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(0x3fff) || length > 0xffff)
		return 0;
	if (ip->protocol == IPPROTO_UDP) {
		h->length = length - sizeof(struct udphdr);
		h->kind = KIND_WHOLE;
		h->tag = datagram_tag(payload, h->length, ip->id);
		return length < sizeof(struct udphdr) + 16 ? 0 : ip;
	}
	if (ip->protocol == IPPROTO_TCP) {
		__u32 header_bytes = ((struct tcphdr *)rest)->doff * 4;

		h->length = length - header_bytes;
		h->kind = KIND_RANGE;
		h->tag = (__u64)bpf_ntohl(rest[6]) << 32 | bpf_ntohl(rest[1]);
		return header_bytes < 32 || length <= header_bytes || rest[5] != bpf_htonl(TIMESTAMP_LAYOUT) ? 0 : ip;
	}
	return 0;
}

static __always_inline void address(const struct iphdr *ip, struct tuple *t)
{
	const __u16 *ports = (const void *)(ip + 1);

	t->from.low = 0xffff00000000ull | bpf_ntohl(ip->saddr);
	t->to.low = 0xffff00000000ull | bpf_ntohl(ip->daddr);
	t->from.port = ports[0];
	t->to.port = ports[1];
	t->protocol = ip->protocol;
}

// Not inlined, so that the code for plain packets stays together in the cache of instructions.
static __attribute__((noinline)) int trace_other(struct __sk_buff *skb, __u32 place)
{
	__u32 number = bpf_get_smp_processor_id();
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	struct packet p = {};
	struct count *count;

	if (!cpu)
		return TC_ACT_UNSPEC;
	count = &cpu->counts[place & (PLACES - 1)];
	if (parsed(skb, place, &p) < 0)
		count->untraced++;
	else if (is_only_counted(cpu, &p.head))
		count->counted += segments(skb, &p.head);
	else
		follow(skb, cpu, count, place, &p.tuple, &p.head);
	return TC_ACT_UNSPEC;
}

// Inlined into the program of each place: with mitigations for speculative returns, a call would be a tenth of the cost.
static __always_inline int trace(struct __sk_buff *skb, __u32 place)
{
	__u32 number = bpf_get_smp_processor_id();
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	struct count *count;
	struct iphdr *ip;
	struct head h;

	if (!cpu)
		return TC_ACT_UNSPEC;
	count = &cpu->counts[place & (PLACES - 1)];
	count->met++;
	ip = plain(skb, place, &h);
	if (!ip)
		return trace_other(skb, place);
	if (is_only_counted(cpu, &h)) {
		count->counted += segments(skb, &h);
	} else {
		struct tuple t = {};

		address(ip, &t);
		follow(skb, cpu, count, place, &t, &h);
	}
	return TC_ACT_UNSPEC;
}

#define AT(place)                                                                                                              \
	SEC("classifier")                                                                                                      \
	int trace_##place(struct __sk_buff *skb)                                                                               \
	{                                                                                                                      \
		return trace(skb, place);                                                                                      \
	}

AT(0)
AT(1)
AT(2)
AT(3)
AT(4)
AT(5)
AT(6)
AT(7)
AT(8)
AT(9)
AT(10)
AT(11)
AT(12)
AT(13)
AT(14)
AT(15)

char LICENSE[] SEC("license") = "GPL";
