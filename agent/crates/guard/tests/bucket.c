// Threads take from one bucket, with the program's own arithmetic. Prints how many packets passed, for how many the bucket was
// charged, and how often a thread saw the latest departure before its own.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "guard_bucket.h"

#define THREADS 4
#define COST 1000ULL

static const __u64 now = 1ULL << 40, tolerance = 100 * COST;
static __u64 due, hold, packets, latest, behind;

static void *sender(void *unused)
{
	__u64 passed = 0, at;

	(void)unused;
	for (__u64 i = 0; i < packets; i++) {
		at = take(&due, now, tolerance, hold, COST);
		if (!at)
			continue;
		passed++;
		raise_to(&latest, at);
		if (*(volatile __u64 *)&latest < at)
			__sync_fetch_and_add(&behind, 1);
	}
	return (void *)passed;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	__u64 passed = 0;
	void *one;

	if (argc != 3)
		return 2;
	packets = strtoull(argv[1], 0, 10);
	hold = strtoull(argv[2], 0, 10) * COST;
	due = now - tolerance;
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], 0, sender, 0);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &one);
		passed += (__u64)one;
	}
	printf("%llu %llu %llu\n", (unsigned long long)passed, (unsigned long long)((due - (now - tolerance)) / COST),
	       (unsigned long long)behind);
	return 0;
}
