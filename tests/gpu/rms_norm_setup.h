/* A call of rms_norm and of its backward on random fp32 tensors of a device, for tests of what only devices have. */
#ifndef TIGON_TESTS_GPU_RMS_NORM_SETUP_H
#define TIGON_TESTS_GPU_RMS_NORM_SETUP_H

#include "tests/gpu/device.h"

typedef struct rms_norm_setup {
  int device;
  int64_t rows, width;
  tigon_tensor x, weight, out, rstd, dy, dx, d_weight;
  tigon_rms_norm_args forward;
  tigon_rms_norm_backward_args backward;
  tigon_exec exec;
} rms_norm_setup;

/* Tensors in the context that is current. */
void rms_norm_make(rms_norm_setup *s, int device, int64_t rows, int64_t width, CUstream stream);
void rms_norm_drop(rms_norm_setup *s);

/* A compact tensor (rows, width) of the device, a vector where rows is 1; its memory is the caller's to free. */
DLTensor *rms_norm_on_device(rms_norm_setup *s, tigon_tensor *t, DLDataType dtype, int64_t rows, int64_t width);

/* Normal values. */
void rms_norm_fill(tigon_tensor *t, int64_t count, uint64_t seed);

/* Forward, then backward. */
void rms_norm_run(rms_norm_setup *s);

/* A hash of all outputs. */
uint64_t rms_norm_results(const rms_norm_setup *s);

/* Outputs are NaN afterwards. */
void rms_norm_poison(const rms_norm_setup *s);

#endif
