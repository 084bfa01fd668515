/* moe_route on the device in place of the CPU, for the programs that test the CPU (mirror.h). */
#include "tests/gpu/mirror.h"

/* The programs' own main knows of no device. */
__attribute__((constructor)) static void need_device(void) { gpu_skip_without_device(); }

static void add_forward(mirror *m, tigon_moe_route_args *args) {
  MIRROR_INPUT(logits);
  MIRROR_INPUT(selection_bias);
  MIRROR_OUTPUT(topk_ids);
  MIRROR_OUTPUT(topk_weights);
  MIRROR_OUTPUT(counts);
  MIRROR_OUTPUT(balance_loss);
  MIRROR_OUTPUT(z_loss);
}

static void add_backward(mirror *m, tigon_moe_route_backward_args *args) {
  MIRROR_INPUT(logits);
  MIRROR_INPUT(topk_ids);
  MIRROR_INPUT(d_topk_weights);
  MIRROR_INPUT(d_balance_loss);
  MIRROR_INPUT(d_z_loss);
  MIRROR_OUTPUT(d_logits);
}

MIRROR(tigon_moe_route, add_forward)
MIRROR(tigon_moe_route_backward, add_backward)
