/* Tensors that break a rule, and the check that a refused call wrote nothing. */
#ifndef TIGON_TESTS_MOE_BROKEN_H
#define TIGON_TESTS_MOE_BROKEN_H

#include "tests/support/support.h"

/* A function that breaks one rule of an args struct. */
#define RULE(name, type, statement) \
  static void name(type *a) { statement; }

/* A tensor of another dtype or shape in place of a good one. */
static tigon_tensor spare;
static float spare_data[4096];
static inline DLTensor *other(DLDataType dtype, int ndim, int64_t a, int64_t b, int64_t c) {
  return tigon_tensor_nd(&spare, spare_data, dtype, ndim, (int64_t[]){a, b, c});
}

static inline void check_untouched(const test_tensor *t) {
  for (size_t i = 0; i < t->bytes; i++)
    if (t->block[i] != 0xff) fail_msg("an output was written by a call that failed");
}

/* A tensor broken in one way that a check can see or that leaves all accesses inside its memory. */
static inline void corrupt(tigon_tensor *t, test_rng *rng) {
  const int axis = (int)test_random_range(rng, 0, t->dl.ndim > 0 ? t->dl.ndim - 1 : 0);
  switch (test_random(rng) % 9) {
  case 0:
    t->shape[axis] -= 1;
    break;
  case 1:
    t->shape[axis] = -test_random_range(rng, 1, 100);
    break;
  case 2:
    t->dl.ndim = (int32_t)test_random_range(rng, -1, 9);
    if (t->dl.ndim > 5) t->dl.shape = NULL;
    break;
  case 3:
    t->dl.dtype.code = (uint8_t)test_random(rng);
    if (t->dl.dtype.code <= kDLBfloat) t->dl.dtype.bits = 8;
    break;
  case 4:
    t->dl.dtype.lanes = (uint16_t)test_random_range(rng, 2, 9);
    break;
  case 5:
    t->dl.device.device_type = kDLCUDA;
    break;
  case 6:
    t->dl.data = NULL;
    break;
  case 7:
    t->dl.byte_offset = 1;
    break;
  default:
    t->strides[axis] = 0;
    break;
  }
}

#endif
