/*
 * Runs an operation whose tensors lie in host memory on the device: mirrors the memory that they reach, with poisoned
 * guards around it, and copies the outputs back. Tensors that share memory share their mirror. So the programs that
 * test the CPU test the GPU: they are linked with wrappers of the operations (wrap_<family>.c) that call this.
 */
#ifndef TIGON_TESTS_GPU_MIRROR_H
#define TIGON_TESTS_GPU_MIRROR_H

#include "tests/gpu/device.h"

enum { MIRROR_TENSORS = 16 };

typedef struct mirror_segment {
  uintptr_t begin, end; /* in the host */
  CUdeviceptr block;    /* of the guards and the segment */
  CUdeviceptr device;   /* where `begin` stands */
} mirror_segment;

typedef struct mirror {
  DLTensor *original[MIRROR_TENSORS];
  DLTensor copy[MIRROR_TENSORS];
  bool output[MIRROR_TENSORS];
  int tensors;
  mirror_segment segment[MIRROR_TENSORS];
  int segments;
  tigon_exec exec;
  CUdeviceptr workspace_block;
} mirror;

/* The device: 0, or what TIGON_TEST_GPU says. */
DLDevice mirror_device(void);

/* Replaces the tensor that *place points to by its copy; NULL stays. */
void mirror_add(mirror *m, DLTensor **place, bool output);

/* After all tensors were added: copies them to the device and makes exec the device's. data: false for queries, in
 * which no memory is looked at. */
void mirror_start(mirror *m, const tigon_exec *exec, bool data);

/* Waits for the device, checks the guards, copies outputs back. */
void mirror_end(mirror *m);

/* For functions that name the tensors of args: args' inputs are const, and the mirror only reads them. */
#define MIRROR_INPUT(member)  mirror_add(m, (DLTensor **)(void *)&args->member, false)
#define MIRROR_OUTPUT(member) mirror_add(m, &args->member, true)

/* A query of an operation, on tensors that add(mirror, args) names. */
#define MIRROR_QUERY(name, suffix, add)                                                                \
  tigon_status __real_##name##suffix(const tigon_exec *exec, const name##_args *args, uint64_t *to);   \
  tigon_status __wrap_##name##suffix(const tigon_exec *exec, const name##_args *args, uint64_t *to);   \
  tigon_status __wrap_##name##suffix(const tigon_exec *exec, const name##_args *given, uint64_t *to) { \
    mirror m = {0};                                                                                    \
    name##_args args = *given;                                                                         \
    add(&m, &args);                                                                                    \
    mirror_start(&m, exec, false);                                                                     \
    return __real_##name##suffix(&m.exec, &args, to);                                                  \
  }

/* The operation, whose args struct may be a shorter one, and the query of its workspace. */
#define MIRROR(name, add)                                                        \
  tigon_status __real_##name(const tigon_exec *exec, const name##_args *args);   \
  tigon_status __wrap_##name(const tigon_exec *exec, const name##_args *args);   \
  tigon_status __wrap_##name(const tigon_exec *exec, const name##_args *given) { \
    mirror m = {0};                                                              \
    name##_args args = {0};                                                      \
    memcpy(&args, given, given->size < sizeof args ? given->size : sizeof args); \
    add(&m, &args);                                                              \
    mirror_start(&m, exec, true);                                                \
    const tigon_status status = __real_##name(&m.exec, &args);                   \
    mirror_end(&m);                                                              \
    return status;                                                               \
  }                                                                              \
  MIRROR_QUERY(name, _workspace, add)

#endif
