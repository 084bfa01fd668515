#include "bench_tensors.h"

#include <stdlib.h>
#include <string.h>

#include "random.h"

DLDataType bench_dtype(const char *name) { return strcmp(name, "bfloat16") == 0 ? tigon_bf16() : tigon_f32(); }

/* Sums of four uniform numbers: close enough to normal, and quick for hundreds of megabytes. */
static float almost_normal(random_stream *stream, float scale) {
  const uint64_t bits = random_bits(stream);
  const double sum =
      (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) + (double)(bits >> 32 & 0xffff) + (double)(bits >> 48);
  return (float)((sum / 65536 - 2) * 1.7320508) * scale;
}

DLTensor *bench_tensor(bench_tensors *all, DLDataType dtype, int ndim, const int64_t *shape, float scale) {
  if (all->count == BENCH_MOST_TENSORS) abort();
  const int at = all->count++;
  int64_t elements = 1;
  for (int i = 0; i < ndim; i++) elements *= shape[i];
  all->memory[at] = bench_alloc((uint64_t)elements * dtype.bits / 8);
  random_stream stream = random_open(1, (uint64_t)at);
  for (int64_t i = 0; scale != 0 && i < elements; i++) {
    const float value = almost_normal(&stream, scale);
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if (dtype.bits == 32)
      ((float *)all->memory[at])[i] = value;
    else
      ((uint16_t *)all->memory[at])[i] = (uint16_t)(word >> 16);
  }
  return tigon_tensor_nd(&all->tensor[at], all->memory[at], dtype, ndim, shape);
}

void bench_tensors_free(bench_tensors *all) {
  for (int i = 0; i < all->count; i++) bench_free(all->memory[i]);
  all->count = 0;
}
