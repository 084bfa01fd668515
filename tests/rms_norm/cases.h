/* The cases that every backend of rms_norm is tested with: each option set runs on each shape; the dtype mixes take
 * turns, and all of them run on one shape. */
#ifndef TIGON_TESTS_RMS_NORM_CASES_H
#define TIGON_TESTS_RMS_NORM_CASES_H

#include "tests/support/support.h"

typedef struct rms_shape {
  int64_t outer, heads, width; /* heads 0: a matrix (outer, width) */
} rms_shape;

static const rms_shape rms_shapes[] = {
    {0, 0, 64},   {1, 0, 1},    {3, 0, 1},     {1, 0, 7},     {7, 0, 7},    {5, 0, 15},   {6, 0, 16},    {2, 0, 17},
    {9, 0, 31},   {4, 0, 33},   {63, 0, 63},   {64, 0, 64},   {65, 0, 65},  {3, 0, 127},  {129, 0, 129}, {130, 0, 128},
    {2, 0, 1000}, {1, 0, 1024}, {513, 0, 257}, {17, 0, 4095}, {3, 0, 4097}, {2, 0, 8200}, {1, 0, 65537}, {1, 0, 262144},
    {5, 3, 64},   {1, 1, 65},   {7, 2, 129},   {0, 4, 16},    {4, 0, 512},  {33, 8, 32},  {600, 1, 9},
};

typedef struct rms_options {
  bool residual, weight, rstd; /* rstd: forward writes it */
  int32_t casting;
  float eps, offset;
  double scale;         /* of x */
  bool strided;         /* padded rows, offsets, spaced rstd */
  bool whole;           /* with strided: pads and offsets are whole vectors of a device */
  bool expand;          /* x, dy and d_residual_out with stride 0 in front */
  bool no_dy, no_d_sum; /* backward without this upstream gradient */
  bool dx, d_residual, d_weight;
  bool accumulate;
} rms_options;

static const rms_options rms_option_sets[] = {
    {.weight = true, .rstd = true, .dx = true, .d_weight = true, .scale = 1},
    {.weight = true, .rstd = true, .casting = 1, .offset = 1, .dx = true, .d_weight = true, .scale = 3},
    {.residual = true, .weight = true, .rstd = true, .dx = true, .d_residual = true, .d_weight = true, .scale = 1},
    {.residual = true,
     .weight = true,
     .casting = 1,
     .offset = 1,
     .strided = true,
     .dx = true,
     .d_residual = true,
     .d_weight = true,
     .accumulate = true,
     .rstd = true,
     .scale = 0.01},
    {.strided = true, .rstd = true, .dx = true, .d_weight = true, .scale = 2},
    {.casting = 1, .eps = 0.5f, .dx = true, .scale = 1},
    {.weight = true, .rstd = true, .expand = true, .dx = true, .d_weight = true, .accumulate = true, .scale = 1},
    {.residual = true, .weight = true, .strided = true, .expand = true, .rstd = true, .d_residual = true, .scale = 1},
    {.weight = true, .offset = 1, .strided = true, .rstd = true, .eps = 1e-3f, .d_weight = true, .scale = 1e-3},
    {.residual = true, .casting = 1, .no_dy = true, .dx = true, .d_residual = true, .d_weight = true, .scale = 1},
    {.residual = true, .weight = true, .no_d_sum = true, .dx = true, .d_weight = true, .scale = 1},
    {.weight = true, .no_dy = true, .no_d_sum = true, .dx = true, .d_weight = true, .accumulate = true, .scale = 1},
};

typedef struct rms_kinds {
  tigon_kind x, residual, weight, out, sum; /* dy takes out's, d_residual_out takes sum's */
  tigon_kind dx, d_residual, d_weight;
} rms_kinds;

enum { RMS_MIXES = 243, RMS_PLAIN_MIXES = 6 };

static inline rms_kinds rms_uniform(tigon_kind kind, tigon_kind weight) {
  return (rms_kinds){kind, kind, weight, kind, kind, kind, kind, weight};
}

/* Mix i of x, residual, weight, out and sum; the gradients' kinds follow from i too. */
static inline rms_kinds rms_mix(int i) {
  static const tigon_kind kinds[] = {TIGON_F32, TIGON_F16, TIGON_BF16};
  return (rms_kinds){kinds[i % 3],      kinds[i / 3 % 3],   kinds[i / 9 % 3],       kinds[i / 27 % 3],
                     kinds[i / 81 % 3], kinds[(i + 1) % 3], kinds[(i / 3 + 2) % 3], kinds[(i / 9 + 1) % 3]};
}

/* The common mixes: one kind throughout, or fp32 weights. */
static inline rms_kinds rms_plain_mix(int i) {
  static const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};
  return rms_uniform(kinds[i % 3], i < 3 ? kinds[i % 3] : TIGON_F32);
}

#endif
