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

#endif
