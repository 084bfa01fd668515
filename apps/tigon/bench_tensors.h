/* Tensors of a bench row: on huge pages, inputs filled with normal random numbers, freed together. The names are those
 * that a peer knows them by. */
#ifndef APPS_BENCH_TENSORS_H
#define APPS_BENCH_TENSORS_H

#include <stdbool.h>
#include <tigon/tensor.h>

enum { BENCH_MOST_TENSORS = 24, BENCH_SEED = 1 };

typedef struct bench_tensors {
  tigon_tensor tensor[BENCH_MOST_TENSORS];
  const char *name[BENCH_MOST_TENSORS];
  bool input[BENCH_MOST_TENSORS];
  int count;
} bench_tensors;

/* Shapes as arguments: bench_input(&all, "x", dtype, SHAPE(2, 3), 1.0f) */
#define SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }

/* scale 0 leaves zeros, for the caller to fill. */
DLTensor *bench_input(bench_tensors *all, const char *name, DLDataType dtype, int ndim, const int64_t *shape,
                      float scale);
DLTensor *bench_output(bench_tensors *all, const char *name, DLDataType dtype, int ndim, const int64_t *shape);
DLTensor *bench_find_tensor(bench_tensors *all, const char *name); /* NULL: none has that name */
void bench_tensors_free(bench_tensors *all);

DLDataType bench_dtype(const char *name);
const char *bench_dtype_name(DLDataType dtype);
uint64_t bench_tensor_bytes(const DLTensor *tensor);

/* One element of a compact float32, bfloat16, int32 or int64 tensor. */
double bench_value(const DLTensor *tensor, int64_t index);

/* Compares sampled elements of a result with the plain formula in float64. */
typedef struct bench_judge {
  double worst, squares; /* the largest error, the sum of squares of what was expected */
  int64_t count;
  bool finite;
} bench_judge;

void bench_judge_start(bench_judge *judge);
void bench_judge_add(bench_judge *judge, double got, double expected);
/* The largest error is at most the tolerance of dtype times the root mean square of what was expected. */
bool bench_judge_accepts(const bench_judge *judge, const char *dtype);

#endif
