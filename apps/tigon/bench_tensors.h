/* Tensors of a bench row: allocated on huge pages, filled with normal random numbers, freed together. */
#ifndef APPS_BENCH_TENSORS_H
#define APPS_BENCH_TENSORS_H

#include "bench.h"

enum { BENCH_MOST_TENSORS = 24 };

typedef struct bench_tensors {
  tigon_tensor tensor[BENCH_MOST_TENSORS];
  void *memory[BENCH_MOST_TENSORS];
  int count;
} bench_tensors;

/* scale 0 leaves zeros. */
DLTensor *bench_tensor(bench_tensors *all, DLDataType dtype, int ndim, const int64_t *shape, float scale);
void bench_tensors_free(bench_tensors *all);
DLDataType bench_dtype(const char *name);

/* Shapes as arguments: bench_tensor(all, dtype, SHAPE(2, 3), 1.0f) */
#define SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }

#endif
