// The arithmetic of a bucket, apart from the program so that a test can run it on the host.
#ifndef GUARD_BUCKET_H
#define GUARD_BUCKET_H
#include <linux/types.h>

// More than a year at the bucket's time of 1/64 ns: added to a clock of some years it does not wrap.
#define DEBT_MAX (1ULL << 61)

// `count` times `cost`, without the fraction of so many bits. The whole product can be longer than a word: 64 KiB in segments of
// one byte are 4 MB with their headers, which at 64 kbit/s take 2^65. Exact up to 2^36 bytes or packets.
static inline __attribute__((always_inline)) __u64 taken(__u64 count, __u64 cost, int shift)
{
	__u64 whole = count * (cost >> shift) + (count * (cost & ((1ULL << shift) - 1)) >> shift);

	return whole < DEBT_MAX ? whole : DEBT_MAX;
}

// So often a bucket is moved by compare-and-exchange. A test has others.
#ifndef TRIES
#define TRIES 16
#endif

// Takes `cost` from a bucket if its time has come, or comes within `hold`: that time. Else 0, and the bucket stays as it is.
//
// If other CPUs were faster each time, the cost is added whatever the bucket holds by then. So a packet that conforms is never
// dropped, and always charged; one for each CPU may pass beyond the limit.
static inline __attribute__((always_inline)) __u64 take(__u64 *due, __u64 now, __u64 tolerance, __u64 hold, __u64 cost)
{
	__u64 seen, from;

#pragma unroll
	for (int i = 0; i < TRIES; i++) {
		seen = *(volatile __u64 *)due;
		from = seen + tolerance < now ? now - tolerance : seen;
		if (from > now + hold)
			return 0;
		if (__sync_val_compare_and_swap(due, seen, from + cost) == seen)
			return from;
	}
	seen = *(volatile __u64 *)due;
	from = seen + tolerance < now ? now - tolerance : seen;
	if (from > now + hold)
		return 0;
	// What it lags behind, too: several CPUs may add that, which is too much and never too little.
	return __sync_fetch_and_add(due, from - seen + cost) + (from - seen);
}

#endif
