/* moe_route on the device in place of the CPU, for the programs that test the CPU (mirror.h). */
#include "tests/gpu/mirror.h"

/* The programs' own main knows of no device. */
__attribute__((constructor)) static void need_device(void) { gpu_skip_without_device(); }

/* args' inputs are const: the mirror only reads them. */
#define INPUT(member)  mirror_add(m, (DLTensor **)(void *)&args->member, false)
#define OUTPUT(member) mirror_add(m, &args->member, true)

static void add_forward(mirror *m, tigon_moe_route_args *args) {
  INPUT(logits);
  INPUT(selection_bias);
  OUTPUT(topk_ids);
  OUTPUT(topk_weights);
  OUTPUT(counts);
  OUTPUT(balance_loss);
  OUTPUT(z_loss);
}

static void add_backward(mirror *m, tigon_moe_route_backward_args *args) {
  INPUT(logits);
  INPUT(topk_ids);
  INPUT(d_topk_weights);
  INPUT(d_balance_loss);
  INPUT(d_z_loss);
  OUTPUT(d_logits);
}

#define DEFINE(name, add)                                                                                  \
  tigon_status __real_##name(const tigon_exec *exec, const name##_args *args);                             \
  tigon_status __wrap_##name(const tigon_exec *exec, const name##_args *args);                             \
  tigon_status __real_##name##_workspace(const tigon_exec *, const name##_args *, uint64_t *);             \
  tigon_status __wrap_##name##_workspace(const tigon_exec *, const name##_args *, uint64_t *);             \
  tigon_status __wrap_##name(const tigon_exec *exec, const name##_args *given) {                           \
    mirror m = {0};                                                                                        \
    name##_args args = *given;                                                                             \
    add(&m, &args);                                                                                        \
    mirror_start(&m, exec, true);                                                                          \
    const tigon_status status = __real_##name(&m.exec, &args);                                             \
    mirror_end(&m);                                                                                        \
    return status;                                                                                         \
  }                                                                                                        \
  tigon_status __wrap_##name##_workspace(const tigon_exec *exec, const name##_args *given, uint64_t *to) { \
    mirror m = {0};                                                                                        \
    name##_args args = *given;                                                                             \
    add(&m, &args);                                                                                        \
    mirror_start(&m, exec, false);                                                                         \
    return __real_##name##_workspace(&m.exec, &args, to);                                                  \
  }

DEFINE(tigon_moe_route, add_forward)
DEFINE(tigon_moe_route_backward, add_backward)
