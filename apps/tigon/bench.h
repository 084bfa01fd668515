/* `tigon bench`: how rows are measured. A row's median time stands beside the ceilings that the same run measured between
 * its repetitions, so that a busy machine slows both. */
#ifndef APPS_BENCH_H
#define APPS_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <tigon/tigon.h>

#include "parallel.h"

typedef struct bench {
  workers *crew;
  int threads;
  double seconds; /* measuring time of a row, at least */
  tigon_exec exec;
  uint64_t workspace_room;
} bench;

/* Seconds of a monotonic clock. */
double bench_now(void);

/* Memory on huge pages where the system grants them, every page touched. The process ends where there is none. */
void *bench_alloc(uint64_t bytes);
void bench_free(void *memory);

/* GFLOP/s of fused multiply-adds on registers, all threads: what the processor can do at best. */
double bench_fma_rate(bench *b);
/* GB/s, read and written bytes both counted, of a copy of `bytes / 2` bytes by all threads. */
double bench_copy_rate(bench *b, void *to, const void *from, uint64_t bytes);

typedef struct bench_row {
  const char *family, *name, *pass, *dtype;
  double flop;    /* executed floating-point operations; 0: the row is bound by memory */
  uint64_t bytes; /* read and written, for rows bound by memory */
  tigon_status (*run)(const bench *b, void *context);
  void *context;
} bench_row;

/* Measures and prints the row; returns its median seconds, or -1 after an error, which is printed. */
double bench_measure(bench *b, const bench_row *row);
void bench_print_header(const bench *b);
/* time(2n) / time(n) */
void bench_print_growth(const char *family, const char *what, double once, double twice);

/* Makes the workspace at least that large. */
void bench_need_workspace(bench *b, uint64_t bytes);

/* The rows of each family; false after an error. */
typedef bool bench_family(bench *b);
bench_family bench_gemm, bench_rms_norm, bench_lightning_attention, bench_linear_cross_entropy, bench_moe;

/* Median seconds of args' product (n^3 in fp32) and of OpenBLAS at its best processor type for it, in turns. Returns that
 * type's name; NULL where libopenblas is not installed. */
const char *bench_openblas(const bench *b, int64_t n, tigon_linear_args *args, double *ours, double *theirs);

#endif
