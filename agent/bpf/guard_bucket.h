// The arithmetic of a bucket, separate from the program so that a test can run it on the host.
#ifndef GUARD_BUCKET_H
#define GUARD_BUCKET_H
#include <linux/types.h>

// More than a year in the bucket's unit of 1/64 ns. Added to a clock of some years, it does not wrap.
#define DEBT_MAX (1ULL << 61)

// `count` times `cost`, shifted right by `shift` bits. The full product may exceed 64 bits: 64 KiB in segments of one byte are
// 4 MB with their headers, which at 64 kbit/s take 2^65. Exact up to 2^36 bytes or packets.
static inline __attribute__((always_inline)) __u64 taken(__u64 count, __u64 cost, int shift)
{
	__u64 whole = count * (cost >> shift) + (count * (cost & ((1ULL << shift) - 1)) >> shift);

	return whole < DEBT_MAX ? whole : DEBT_MAX;
}

// Compare-and-exchange attempts per update. A test sets other values.
#ifndef TRIES
#define TRIES 16
#endif

// Takes `cost` from a bucket if it is due now or within `hold`, and returns the due time. Otherwise returns 0 and leaves the bucket
// unchanged.
//
// If other CPUs win every attempt, the cost is added regardless of the bucket's level. So a conforming packet is never dropped,
// and is always charged. One packet per CPU may exceed the limit.
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
	// Also add the bucket's lag behind the tolerance. Several CPUs may add it, which charges too much but never too little.
	return __sync_fetch_and_add(due, from - seen + cost) + (from - seen);
}

// Raises `latest` to `at`, however many CPUs do so at once. A CPU that loses every attempt leaves it to those that won.
static inline __attribute__((always_inline)) void raise_to(__u64 *latest, __u64 at)
{
	__u64 seen;

#pragma unroll
	for (int i = 0; i < TRIES; i++) {
		seen = *(volatile __u64 *)latest;
		if (seen >= at || __sync_val_compare_and_swap(latest, seen, at) == seen)
			return;
	}
}

#endif
