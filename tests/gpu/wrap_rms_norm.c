/* rms_norm on the device in place of the CPU, for the programs that test the CPU (mirror.h). */
#include "tests/gpu/mirror.h"

/* The programs' own main knows of no device. */
__attribute__((constructor)) static void need_device(void) { gpu_skip_without_device(); }

#define WRAP(name)                                                                             \
  tigon_status __real_##name(const tigon_exec *exec, const name##_args *args);                 \
  tigon_status __wrap_##name(const tigon_exec *exec, const name##_args *args);                 \
  tigon_status __real_##name##_workspace(const tigon_exec *, const name##_args *, uint64_t *); \
  tigon_status __wrap_##name##_workspace(const tigon_exec *, const name##_args *, uint64_t *);

WRAP(tigon_rms_norm)
WRAP(tigon_rms_norm_backward)

/* args' inputs are const: the mirror only reads them. */
#define INPUT(member)  mirror_add(m, (DLTensor **)(void *)&args->member, false)
#define OUTPUT(member) mirror_add(m, &args->member, true)

static void add_forward(mirror *m, tigon_rms_norm_args *args) {
  INPUT(x);
  INPUT(residual);
  INPUT(weight);
  OUTPUT(out);
  OUTPUT(residual_out);
  OUTPUT(rstd);
}

static void add_backward(mirror *m, tigon_rms_norm_backward_args *args) {
  INPUT(dy);
  INPUT(d_residual_out);
  INPUT(x);
  INPUT(weight);
  INPUT(rstd);
  OUTPUT(dx);
  OUTPUT(d_residual);
  OUTPUT(d_weight);
}

#define DEFINE(name, add)                                                                                  \
  tigon_status __wrap_##name(const tigon_exec *exec, const name##_args *given) {                           \
    mirror m = {0};                                                                                        \
    name##_args args = {0};                                                                                \
    memcpy(&args, given, given->size < sizeof args ? given->size : sizeof args);                           \
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

DEFINE(tigon_rms_norm, add_forward)
DEFINE(tigon_rms_norm_backward, add_backward)
