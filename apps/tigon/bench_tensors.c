#include "bench_tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "random.h"

DLDataType bench_dtype(const char *name) { return strcmp(name, "bfloat16") == 0 ? tigon_bf16() : tigon_f32(); }

const char *bench_dtype_name(DLDataType dtype) {
  if (dtype.code == kDLInt) return dtype.bits == 32 ? "int32" : "int64";
  return dtype.code == kDLBfloat ? "bfloat16" : "float32";
}

static int64_t elements(const DLTensor *tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor->ndim; i++) count *= tensor->shape[i];
  return count;
}

uint64_t bench_tensor_bytes(const DLTensor *tensor) { return (uint64_t)elements(tensor) * tensor->dtype.bits / 8; }

/* Sums of four uniform numbers: close enough to normal, and quick for hundreds of megabytes. */
static float almost_normal(random_stream *stream, float scale) {
  const uint64_t bits = random_bits(stream);
  const double sum =
      (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) + (double)(bits >> 32 & 0xffff) + (double)(bits >> 48);
  return (float)((sum / 65536 - 2) * 1.7320508) * scale;
}

DLTensor *bench_output(bench_tensors *all, const char *name, DLDataType dtype, int ndim, const int64_t *shape) {
  if (all->count == BENCH_MOST_TENSORS) abort();
  const int at = all->count++;
  DLTensor *tensor = tigon_tensor_nd(&all->tensor[at], NULL, dtype, ndim, shape);
  tensor->data = bench_alloc(bench_tensor_bytes(tensor));
  all->name[at] = name;
  all->input[at] = false;
  return tensor;
}

DLTensor *bench_input(bench_tensors *all, const char *name, DLDataType dtype, int ndim, const int64_t *shape,
                      float scale) {
  DLTensor *tensor = bench_output(all, name, dtype, ndim, shape);
  const int at = all->count - 1;
  all->input[at] = true;
  random_stream stream = random_open(BENCH_SEED, (uint64_t)at);
  const int64_t count = scale == 0 ? 0 : elements(tensor);
  for (int64_t i = 0; i < count; i++) {
    const float value = almost_normal(&stream, scale);
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if (dtype.bits == 32)
      ((float *)tensor->data)[i] = value;
    else
      ((uint16_t *)tensor->data)[i] = (uint16_t)(word >> 16);
  }
  return tensor;
}

DLTensor *bench_find_tensor(bench_tensors *all, const char *name) {
  for (int i = 0; i < all->count; i++)
    if (!strcmp(all->name[i], name)) return &all->tensor[i].dl;
  return NULL;
}

void bench_tensors_free(bench_tensors *all) {
  for (int i = 0; i < all->count; i++) bench_free(all->tensor[i].dl.data);
  all->count = 0;
}

double bench_value(const DLTensor *tensor, int64_t index) {
  if (tensor->dtype.code == kDLInt)
    return tensor->dtype.bits == 32 ? ((const int32_t *)tensor->data)[index]
                                    : (double)((const int64_t *)tensor->data)[index];
  if (tensor->dtype.bits == 32) return ((const float *)tensor->data)[index];
  const uint32_t word = (uint32_t)((const uint16_t *)tensor->data)[index] << 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

void bench_judge_start(bench_judge *judge) { *judge = (bench_judge){.finite = true}; }

void bench_judge_add(bench_judge *judge, double got, double expected) {
  judge->finite = judge->finite && isfinite(got);
  judge->worst = fmax(judge->worst, fabs(got - expected));
  judge->squares += expected * expected;
  judge->count++;
}

bool bench_judge_accepts(const bench_judge *judge, const char *dtype) {
  const double tolerance = strcmp(dtype, "float32") ? 0.05 : 1e-3;
  return judge->finite && judge->count > 0 && judge->worst <= tolerance * sqrt(judge->squares / (double)judge->count);
}
