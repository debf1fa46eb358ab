/* An independent pointer chase, the peer of `cache` and `memory-latency` in fidelity.py. Debian packages none, so this one
 * is compiled when the benchmark runs. It shares nothing with Partywall: the cycle is a visiting order shuffled by Fisher
 * and Yates, and the walk is unrolled by hand.
 * usage: chase BYTES sequential|random HUGE_PAGES(0|1) SEED SETTLE_S SECONDS; prints ns per access. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LINE = 64, BATCH = 4096 };

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t below(uint64_t *state, uint64_t bound) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return (uint64_t)(((unsigned __int128)*state * bound) >> 64);
}

static void *walk(void *at, double seconds, double *ns) {
    uint64_t accesses = 0;
    double start = now_s(), end;
    do {
        void **p = at;
        for (int i = 0; i < BATCH / 8; i++) {
            p = *p, p = *p, p = *p, p = *p, p = *p, p = *p, p = *p, p = *p;
        }
        at = p;
        accesses += BATCH;
        end = now_s();
    } while (end - start < seconds);
    *ns = (end - start) * 1e9 / accesses;
    return at;
}

int main(int argc, char **argv) {
    if (argc != 7) return fprintf(stderr, "usage: chase BYTES ORDER HUGE SEED SETTLE_S SECONDS\n"), 2;
    size_t bytes = strtoull(argv[1], 0, 10), lines = bytes / LINE;
    uint64_t seed = strtoull(argv[4], 0, 10) * 2654435761u + 88172645463325252ull;
    char *block = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint32_t *order = malloc(lines * sizeof *order);
    if (block == MAP_FAILED || !order || lines < 2) return fprintf(stderr, "no memory\n"), 1;
    if (atoi(argv[3]) && madvise(block, bytes, MADV_HUGEPAGE)) return perror("madvise"), 1;
    for (size_t i = 0; i < lines; i++) order[i] = i;
    if (!strcmp(argv[2], "random"))
        for (size_t i = lines - 1; i > 0; i--) {
            size_t j = below(&seed, i + 1);
            uint32_t swap = order[i];
            order[i] = order[j], order[j] = swap;
        }
    for (size_t i = 0; i < lines; i++) *(void **)(block + i * LINE) = 0;
    for (size_t i = 0; i < lines; i++)
        *(void **)(block + (size_t)order[i] * LINE) = block + (size_t)order[(i + 1) % lines] * LINE;
    free(order);
    double ns;
    void *at = walk(block, atof(argv[5]), &ns);
    at = walk(at, atof(argv[6]), &ns);
    printf("%.6f\n", ns);
    return at == 0;
}
