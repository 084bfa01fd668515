#include "tests/gpu/rms_norm_setup.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

DLTensor *rms_norm_on_device(rms_norm_setup *s, tigon_tensor *t, DLDataType dtype, int64_t rows, int64_t width) {
  const size_t bytes = (size_t)(rows * width * dtype.bits / 8);
  tigon_tensor_2d(t, (void *)gpu_alloc(bytes), dtype, rows, width);
  if (rows == 1) tigon_tensor_1d(t, t->dl.data, dtype, width);
  t->dl.device = (DLDevice){kDLCUDA, s->device};
  return &t->dl;
}

void rms_norm_fill(tigon_tensor *t, int64_t count, uint64_t seed) {
  test_rng rng = {seed};
  float *values = malloc((size_t)count * sizeof *values);
  assert_non_null(values);
  for (int64_t i = 0; i < count; i++) values[i] = (float)test_random_normal(&rng);
  GPU(cuMemcpyHtoD((CUdeviceptr)t->dl.data, values, (size_t)count * sizeof *values));
  free(values);
}

void rms_norm_make(rms_norm_setup *s, int device, int64_t rows, int64_t width, CUstream stream) {
  memset(s, 0, sizeof *s);
  s->device = device;
  s->rows = rows;
  s->width = width;
  s->exec = (tigon_exec){.size = sizeof s->exec, .device = {kDLCUDA, device}, .stream = stream};
  s->forward = (tigon_rms_norm_args){.size = sizeof s->forward};
  s->backward = (tigon_rms_norm_backward_args){.size = sizeof s->backward};
  s->forward.x = s->backward.x = rms_norm_on_device(s, &s->x, tigon_f32(), rows, width);
  s->forward.weight = s->backward.weight = rms_norm_on_device(s, &s->weight, tigon_f32(), 1, width);
  s->forward.out = rms_norm_on_device(s, &s->out, tigon_f32(), rows, width);
  s->forward.rstd = rms_norm_on_device(s, &s->rstd, tigon_f32(), 1, rows);
  s->backward.rstd = s->forward.rstd;
  s->backward.dy = rms_norm_on_device(s, &s->dy, tigon_f32(), rows, width);
  s->backward.dx = rms_norm_on_device(s, &s->dx, tigon_f32(), rows, width);
  s->backward.d_weight = rms_norm_on_device(s, &s->d_weight, tigon_f32(), 1, width);
  rms_norm_fill(&s->x, rows * width, 1);
  rms_norm_fill(&s->dy, rows * width, 2);
  rms_norm_fill(&s->weight, width, 3);
  test_expect_status(tigon_rms_norm_backward_workspace(&s->exec, &s->backward, &s->exec.workspace_bytes), TIGON_OK,
                     NULL);
  s->exec.workspace = (void *)gpu_alloc(s->exec.workspace_bytes);
}

void rms_norm_run(rms_norm_setup *s) {
  test_expect_status(tigon_rms_norm(&s->exec, &s->forward), TIGON_OK, NULL);
  test_expect_status(tigon_rms_norm_backward(&s->exec, &s->backward), TIGON_OK, NULL);
}

void rms_norm_drop(rms_norm_setup *s) {
  tigon_tensor *all[] = {&s->x, &s->weight, &s->out, &s->rstd, &s->dy, &s->dx, &s->d_weight};
  for (int i = 0; i < COUNT(all); i++) gpu_free((CUdeviceptr)all[i]->dl.data);
  gpu_free((CUdeviceptr)s->exec.workspace);
}

static uint64_t hash_of(const tigon_tensor *t, int64_t count) {
  uint32_t *bits = malloc((size_t)count * sizeof *bits);
  assert_non_null(bits);
  GPU(cuMemcpyDtoH(bits, (CUdeviceptr)t->dl.data, (size_t)count * sizeof *bits));
  uint64_t hash = 14695981039346656037u;
  for (int64_t i = 0; i < count; i++) hash = (hash ^ bits[i]) * 1099511628211u;
  free(bits);
  return hash;
}

uint64_t rms_norm_results(const rms_norm_setup *s) {
  return hash_of(&s->out, s->rows * s->width) ^ hash_of(&s->dx, s->rows * s->width) * 3 ^
         hash_of(&s->d_weight, s->width) * 5 ^ hash_of(&s->rstd, s->rows) * 7;
}

void rms_norm_poison(const rms_norm_setup *s) {
  const tigon_tensor *big[] = {&s->out, &s->dx};
  for (int i = 0; i < 2; i++) GPU(cuMemsetD8((CUdeviceptr)big[i]->dl.data, 0xff, (size_t)(s->rows * s->width) * 4));
  GPU(cuMemsetD8((CUdeviceptr)s->d_weight.dl.data, 0xff, (size_t)s->width * 4));
  GPU(cuMemsetD8((CUdeviceptr)s->rstd.dl.data, 0xff, (size_t)s->rows * 4));
}
