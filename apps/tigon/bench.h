/* `tigon bench`: how rows are measured. A row's median time stands beside those of the peers and the ceilings that the
 * same run measured in turns with it, so that a busy machine slows all of them. */
#ifndef APPS_BENCH_H
#define APPS_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <tigon/tigon.h>

#include "parallel.h"

typedef struct bench_peer bench_peer;
typedef struct bench_receipt bench_receipt;

typedef struct bench {
  workers *crew;
  int threads;
  double seconds; /* measuring time of a row for each that takes part, at least */
  bool quick;     /* tiny shapes: for tests of the program */
  tigon_exec exec;
  bench_peer *peer;       /* NULL: none */
  bench_receipt *receipt; /* NULL: not asked for */
  int compared, slower;   /* comparisons with a peer, and those where tigon is slower */
  bool wrong;             /* a result was not what the plain formula gives */
} bench;

/* Seconds of a monotonic clock. */
double bench_now(void);
double bench_median(double *values, int n);

/* Memory on huge pages where the system grants them, every page touched. The process ends where there is none. */
void *bench_alloc(uint64_t bytes);
void bench_free(void *memory);

/* GFLOP/s of fused multiply-adds on registers, all threads: what the processor can do at best. */
double bench_fma_rate(bench *b);
/* GB/s, read and written bytes both counted, of a copy of `bytes / 2` bytes by all threads. */
double bench_copy_rate(bench *b, void *to, const void *from, uint64_t bytes);

/* Resident bytes of this process now, and the most since the last reset; -1 where /proc does not tell. */
int64_t bench_memory_now(void);
int64_t bench_memory_peak(void);
bool bench_memory_reset(void);

/* The rows of each family; false after an error. */
typedef bool bench_family(bench *b);
bench_family bench_gemm, bench_rms_norm, bench_lightning_attention, bench_linear_cross_entropy, bench_moe;

/* Median seconds of args' product (n^3 in fp32) and of OpenBLAS at its best processor type for it, in turns; args->y is
 * OpenBLAS's at the end. Returns that type's name; NULL where libopenblas is not installed. */
const char *bench_openblas(const bench *b, int64_t n, tigon_linear_args *args, double *ours, double *theirs);

#endif
