/* rms_norm on the device in place of the CPU, for the programs that test the CPU (mirror.h). */
#include "tests/gpu/mirror.h"

/* The programs' own main knows of no device. */
__attribute__((constructor)) static void need_device(void) { gpu_skip_without_device(); }

static void add_forward(mirror *m, tigon_rms_norm_args *args) {
  MIRROR_INPUT(x);
  MIRROR_INPUT(residual);
  MIRROR_INPUT(weight);
  MIRROR_OUTPUT(out);
  MIRROR_OUTPUT(residual_out);
  MIRROR_OUTPUT(rstd);
}

static void add_backward(mirror *m, tigon_rms_norm_backward_args *args) {
  MIRROR_INPUT(dy);
  MIRROR_INPUT(d_residual_out);
  MIRROR_INPUT(x);
  MIRROR_INPUT(weight);
  MIRROR_INPUT(rstd);
  MIRROR_OUTPUT(dx);
  MIRROR_OUTPUT(d_residual);
  MIRROR_OUTPUT(d_weight);
}

MIRROR(tigon_rms_norm, add_forward)
MIRROR(tigon_rms_norm_backward, add_backward)
