/*
 * The loops of the model and the optimiser between Tigon's operations, compiled for several instruction sets. Each
 * works on a piece of the rows or elements; the caller cuts the work.
 */
#ifndef APPS_ELEMENTWISE_H
#define APPS_ELEMENTWISE_H

#include <stdint.h>

/* How AdamW changes a range of elements. */
typedef struct adamw_step {
  float rate;           /* learning rate */
  float shrink;         /* 1 - rate * weight decay */
  float gradient_scale; /* from clipping */
  float beta1, beta2;
  float correction1, correction2; /* 1 / (1 - beta^step) */
  float epsilon;
} adamw_step;

typedef struct elementwise {
  /* out (rows, n) = silu(x (rows, n)), each with its own row stride */
  void (*silu)(const float *x, int64_t x_stride, float *out, int64_t out_stride, int64_t rows, int64_t n);
  /* d (rows, n) *= silu'(x) */
  void (*silu_backward)(const float *x, float *d, int64_t stride, int64_t rows, int64_t n);
  /* out = x * sigmoid(gate); x and out (rows, n) compact, gate with a row stride */
  void (*gate)(const float *x, const float *gate, int64_t gate_stride, float *out, int64_t rows, int64_t n);
  /* d holds d_out and becomes d_x; d_gate has gate's row stride */
  void (*gate_backward)(const float *x, const float *gate, int64_t gate_stride, float *d, float *d_gate, int64_t rows,
                        int64_t n);
  /* sum of x^2 */
  double (*squares)(const float *x, int64_t n);
  void (*adamw)(const adamw_step *step, const float *gradient, float *weight, float *moment, float *variance,
                int64_t n);
} elementwise;

/* The loops for the instruction set that tigon_cpu_isa() names. */
const elementwise *elementwise_loops(void);

#endif
