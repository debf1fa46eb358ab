/* The method of STREAM (McCalpin, 1995) written anew, the peer of the memory kernels in stream.py. It shares nothing with
 * Partywall: three arrays of doubles, each loop over whole arrays, the first round left out, bytes counted as 2, 2 and 3
 * for each byte of an array.
 * usage: stream ELEMENTS ROUNDS PAGES(static|mapped|huge) LOOP(all|copy|scale|triad) TOUCH(together|apart)
 * TOUCH: whether a page of each array is touched in turn at the start, as STREAM does, or one array after the other.
 * prints a line for each loop: its name, the best and the median of the rounds in MB/s. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifndef STATIC_ELEMENTS
#define STATIC_ELEMENTS (16L << 20)
#endif
static double statics[3][STATIC_ELEMENTS];

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double *array(long elements, const char *pages, int number) {
    if (!strcmp(pages, "static"))
        return statics[number];
    size_t bytes = (size_t)elements * sizeof(double);
    double *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || (!strcmp(pages, "huge") && madvise(start, bytes, MADV_HUGEPAGE)))
        perror("memory"), exit(1);
    return start;
}

/* A function each, so that the compiler sees no more than STREAM's loops; restrict says what their static arrays say. */
#define LOOP(name, expression)                                                                                        \
    __attribute__((noinline)) static void name(double *restrict a, const double *restrict b, const double *restrict c, \
                                               double q, long n) {                                                    \
        for (long i = 0; i < n; i++)                                                                                  \
            a[i] = expression;                                                                                        \
    }
LOOP(scale, q *b[i])
LOOP(triad, b[i] + q * c[i])

/* Bytes that the copy moves at a time: 8 or 16. */
#ifndef COPY_BYTES
#define COPY_BYTES 16
#endif
#if COPY_BYTES == 8
typedef double some;
#else
typedef double some __attribute__((vector_size(COPY_BYTES)));
#endif

/* GCC would call memcpy for a plain copy, which may take other stores; the empty statement keeps the loop. */
__attribute__((noinline)) static void copy(double *restrict a, const double *restrict b, const double *restrict c, double q,
                                           long n) {
    (void)c, (void)q;
    long i = 0;
    for (; i + COPY_BYTES / 8 <= n; i += COPY_BYTES / 8) {
        some values = *(const some *)(b + i);
        __asm__ volatile("" : "+x"(values));
        *(some *)(a + i) = values;
    }
    for (; i < n; i++)
        a[i] = b[i];
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 6)
        return fprintf(stderr, "usage: stream ELEMENTS ROUNDS static|mapped|huge all|copy|scale|triad together|apart\n"), 2;
    long n = atol(argv[1]), rounds = atol(argv[2]);
    if (n < 2 || rounds < 2 || (!strcmp(argv[3], "static") && n > STATIC_ELEMENTS))
        return fprintf(stderr, "too few or too many elements or rounds\n"), 2;
    double *a = array(n, argv[3], 0), *b = array(n, argv[3], 1), *c = array(n, argv[3], 2);
    for (int number = 0; !strcmp(argv[5], "apart") && number < 3; number++)
        for (long i = 0; i < n; i++)
            (number == 0 ? a : number == 1 ? b : c)[i] = 1;
    for (long i = 0; i < n; i++)
        a[i] = b[i] = c[i] = 1;
    static const struct {
        const char *name;
        void (*run)(double *restrict, const double *restrict, const double *restrict, double, long);
        int bytes;
    } loops[] = {{"copy", copy, 2}, {"scale", scale, 2}, {"triad", triad, 3}};
    double *rates = malloc(3 * rounds * sizeof *rates);
    for (long round = 0; round < rounds; round++)
        for (int loop = 0; loop < 3; loop++) {
            if (strcmp(argv[4], "all") && strcmp(argv[4], loops[loop].name))
                continue;
            double start = now_s();
            loops[loop].run(a, b, c, 2.5, n);
            rates[loop * rounds + round] = loops[loop].bytes * (double)n * sizeof(double) / (now_s() - start) / 1e6;
        }
    double sum = 0;
    for (long i = 0; i < n; i += 997)
        sum += a[i];
    for (int loop = 0; loop < 3; loop++) {
        if (strcmp(argv[4], "all") && strcmp(argv[4], loops[loop].name))
            continue;
        double *found = rates + loop * rounds + 1;
        qsort(found, rounds - 1, sizeof *found, ascending);
        printf("%s %.1f %.1f\n", loops[loop].name, found[rounds - 2], found[(rounds - 1) / 2]);
    }
    return sum == 0;
}
