/* moe on the device in place of the CPU, for test_moe_gpu.c (mirror.h). The saved block is mirrored as a whole. */
#include "tests/gpu/mirror.h"

#define WRAP(name, suffix, ...)                    \
  tigon_status __real_##name##suffix(__VA_ARGS__); \
  tigon_status __wrap_##name##suffix(__VA_ARGS__);

WRAP(tigon_moe, , const tigon_exec *, const tigon_moe_args *)
WRAP(tigon_moe, _workspace, const tigon_exec *, const tigon_moe_args *, uint64_t *)
WRAP(tigon_moe, _saved, const tigon_exec *, const tigon_moe_args *, uint64_t *)
WRAP(tigon_moe_backward, , const tigon_exec *, const tigon_moe_backward_args *)
WRAP(tigon_moe_backward, _workspace, const tigon_exec *, const tigon_moe_backward_args *, uint64_t *)

/* args' inputs are const: the mirror only reads them. */
#define INPUT(member)  mirror_add(m, (DLTensor **)(void *)&args->member, false)
#define OUTPUT(member) mirror_add(m, &args->member, true)

/* What forward and backward both read. */
#define INPUTS INPUT(x), INPUT(topk_ids), INPUT(topk_weights), INPUT(gate), INPUT(up), INPUT(gate_up), INPUT(down)

static void add_forward(mirror *m, tigon_moe_args *args) {
  INPUTS;
  OUTPUT(out);
}

static void add_backward(mirror *m, tigon_moe_backward_args *args) {
  INPUT(dout);
  INPUTS;
  OUTPUT(dx);
  OUTPUT(d_topk_weights);
  OUTPUT(d_gate);
  OUTPUT(d_up);
  OUTPUT(d_gate_up);
  OUTPUT(d_down);
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

#define QUERY(name, suffix, add)                                                                       \
  tigon_status __wrap_##name##suffix(const tigon_exec *exec, const name##_args *given, uint64_t *to) { \
    mirror m = {0};                                                                                    \
    name##_args args = *given;                                                                         \
    add(&m, &args);                                                                                    \
    mirror_start(&m, exec, false);                                                                     \
    return __real_##name##suffix(&m.exec, &args, to);                                                  \
  }

QUERY(tigon_moe, _workspace, add_forward)
QUERY(tigon_moe, _saved, add_forward)
QUERY(tigon_moe_backward, _workspace, add_backward)
