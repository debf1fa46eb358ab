// The guard's data plane; for now it lets everything pass.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

SEC("classifier")
int guard(struct __sk_buff *skb)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&seen, &zero);

	if (count)
		__sync_fetch_and_add(count, skb->tc_classid);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
