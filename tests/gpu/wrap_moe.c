/* moe on the device in place of the CPU, for test_moe_gpu.c (mirror.h). The saved block is mirrored as a whole. */
#include "tests/gpu/mirror.h"

#define WRAP(name)                                                             \
  tigon_status __real_##name(const tigon_exec *exec, const name##_args *args); \
  tigon_status __wrap_##name(const tigon_exec *exec, const name##_args *args);

WRAP(tigon_moe)
WRAP(tigon_moe_backward)

/* What forward and backward both read. */
#define INPUTS                                                                                               \
  MIRROR_INPUT(x), MIRROR_INPUT(topk_ids), MIRROR_INPUT(topk_weights), MIRROR_INPUT(gate), MIRROR_INPUT(up), \
      MIRROR_INPUT(gate_up), MIRROR_INPUT(down)

static void add_forward(mirror *m, tigon_moe_args *args) {
  INPUTS;
  MIRROR_OUTPUT(out);
}

static void add_backward(mirror *m, tigon_moe_backward_args *args) {
  MIRROR_INPUT(dout);
  INPUTS;
  MIRROR_OUTPUT(dx);
  MIRROR_OUTPUT(d_topk_weights);
  MIRROR_OUTPUT(d_gate);
  MIRROR_OUTPUT(d_up);
  MIRROR_OUTPUT(d_gate_up);
  MIRROR_OUTPUT(d_down);
}

tigon_status __wrap_tigon_moe(const tigon_exec *exec, const tigon_moe_args *given) {
  mirror m = {0};
  tigon_moe_args args = *given;
  add_forward(&m, &args);
  mirror_start(&m, exec, true);
  const CUdeviceptr block = given->saved ? gpu_alloc(given->saved_bytes) : 0;
  args.saved = (void *)block;
  const tigon_status status = __real_tigon_moe(&m.exec, &args);
  mirror_end(&m);
  if (!block) return status;
  GPU(cuMemcpyDtoH(given->saved, block, given->saved_bytes));
  gpu_free(block);
  return status;
}

tigon_status __wrap_tigon_moe_backward(const tigon_exec *exec, const tigon_moe_backward_args *given) {
  mirror m = {0};
  tigon_moe_backward_args args = *given;
  add_backward(&m, &args);
  mirror_start(&m, exec, true);
  const CUdeviceptr block = given->saved ? gpu_alloc(given->saved_bytes) : 0;
  if (block) GPU(cuMemcpyHtoD(block, given->saved, given->saved_bytes));
  args.saved = (const void *)block;
  const tigon_status status = __real_tigon_moe_backward(&m.exec, &args);
  mirror_end(&m);
  if (!block) return status;
  unsigned char *left = malloc(given->saved_bytes);
  assert_non_null(left);
  GPU(cuMemcpyDtoH(left, block, given->saved_bytes));
  assert_memory_equal(left, given->saved, given->saved_bytes);
  free(left);
  gpu_free(block);
  return status;
}

MIRROR_QUERY(tigon_moe, _workspace, add_forward)
MIRROR_QUERY(tigon_moe, _saved, add_forward)
MIRROR_QUERY(tigon_moe_backward, _workspace, add_backward)
