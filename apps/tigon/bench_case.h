/* A case is one shape of a family in one dtype: its tensors, and its passes, which are measured in turns with the
 * peer. */
#ifndef APPS_BENCH_CASE_H
#define APPS_BENCH_CASE_H

#include "bench.h"
#include "bench_tensors.h"

enum { BENCH_MOST_PROVIDERS = 4, BENCH_MOST_OUTPUTS = 5, BENCH_MOST_PASSES = 2 };

typedef struct bench_figures {
  double seconds; /* median; negative: not measured */
  double fastest;
  int64_t peak; /* bytes above the level with the inputs present; -1: not known */
  bool correct;
} bench_figures;

typedef struct bench_pass {
  const char *name;
  double flop;    /* executed floating-point operations; 0: the pass is bound by memory */
  uint64_t bytes; /* read and written, for passes bound by memory */
  tigon_status (*workspace)(const bench *b, void *args, uint64_t *bytes);
  tigon_status (*run)(const bench *b, void *args);
  void *args;
  /* Compares samples of the outputs with the plain formula: ours, or those of a peer in their place. */
  bool (*check)(void *context);
  void *context;
  const char *outputs[BENCH_MOST_OUTPUTS + 1]; /* what a peer has of them; ends with NULL */
  double ceiling;                              /* GFLOP/s or GB/s; measured, as are the next two */
  bench_figures ours, theirs[BENCH_MOST_PROVIDERS];
  int repetitions;
} bench_pass;

typedef struct bench_case {
  const char *family, *dtype;
  char name[48];
  double scale;  /* of lightning_attention */
  int64_t level; /* resident bytes with the inputs present */
  bench_tensors tensors;
} bench_case;

/* Members run and workspace of a pass, for an operation of the library. */
#define BENCH_OPERATION(op)                                                          \
  static tigon_status run_##op(const bench *b, void *args) {                         \
    return tigon_##op(&b->exec, (const tigon_##op##_args *)args);                    \
  }                                                                                  \
  static tigon_status workspace_##op(const bench *b, void *args, uint64_t *bytes) {  \
    return tigon_##op##_workspace(&b->exec, (const tigon_##op##_args *)args, bytes); \
  }
#define BENCH_RUNS(op) .run = run_##op, .workspace = workspace_##op

void bench_print_header(const bench *b);
/* All inputs are filled, no output is allocated: notes the level of memory, and gives the inputs to the peer. */
void bench_case_start(bench *b, bench_case *c);
/* Measures, prints and records the pass; returns false after an error of the library, which is printed. */
bool bench_case_measure(bench *b, const bench_case *c, bench_pass *pass);
/* Forward and backward together, from their figures. */
void bench_case_sum(bench *b, const bench_case *c, const bench_pass *forward, const bench_pass *backward);
void bench_case_end(bench *b, bench_case *c);

/* time(2n) / time(n) */
void bench_print_growth(const char *family, const char *what, double once, double twice);

#endif
