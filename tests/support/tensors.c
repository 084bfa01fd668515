#include "tests/support/support.h"

enum { MARGIN = 64 }; /* poisoned elements before and after a tensor */

uint64_t test_random(test_rng *rng) {
  uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

int64_t test_random_range(test_rng *rng, int64_t low, int64_t high) {
  return low + (int64_t)(test_random(rng) % (uint64_t)(high - low + 1));
}

double test_random_uniform(test_rng *rng) { return (double)(test_random(rng) >> 11) * 0x1p-53; }

double test_random_normal(test_rng *rng) {
  const double radius = sqrt(-2.0 * log(1.0 - test_random_uniform(rng)));
  return radius * cos(6.283185307179586 * test_random_uniform(rng));
}

DLDataType test_dtype(tigon_kind kind) {
  switch (kind) {
  case TIGON_F16:
    return tigon_f16();
  case TIGON_BF16:
    return tigon_bf16();
  case TIGON_I32:
    return tigon_i32();
  case TIGON_I64:
    return tigon_i64();
  case TIGON_U8:
    return tigon_dtype((uint8_t)kDLUInt, 8);
  default:
    return tigon_f32();
  }
}

const char *test_kind_name(tigon_kind kind) {
  switch (kind) {
  case TIGON_F16:
    return "float16";
  case TIGON_BF16:
    return "bfloat16";
  case TIGON_I32:
    return "int32";
  case TIGON_I64:
    return "int64";
  case TIGON_U8:
    return "uint8";
  default:
    return "float32";
  }
}

void test_tensor_make(test_tensor *t, tigon_kind kind, int ndim, const int64_t *shape, test_layout layout) {
  memset(t, 0, sizeof *t);
  t->kind = kind;
  t->count = 1;
  for (int i = 0; i < ndim; i++) t->count *= shape[i];
  tigon_tensor_nd(&t->tensor, NULL, test_dtype(kind), ndim, shape);
  int64_t stride = layout.vector_stride > 1 ? layout.vector_stride : 1;
  for (int i = ndim - 1; i >= 0; i--) {
    t->tensor.strides[i] = i == 0 && layout.expand ? 0 : stride;
    if (!(i == 0 && layout.expand)) stride *= shape[i];
    if (i == ndim - 1) stride += layout.row_pad;
  }
  const int64_t elements = stride + layout.offset + 2 * MARGIN;
  t->bytes = (size_t)(elements * tigon_kind_bytes(kind));
  t->block = malloc(t->bytes);
  assert_non_null(t->block);
  memset(t->block, 0xff, t->bytes);
  t->tensor.dl.data = t->block + MARGIN * tigon_kind_bytes(kind);
  t->tensor.dl.byte_offset = (uint64_t)(layout.offset * tigon_kind_bytes(kind));
}

void test_tensor_free(test_tensor *t) {
  free(t->block);
  memset(t, 0, sizeof *t);
}

/* Position in the data of a dense index. */
static int64_t position(const test_tensor *t, int64_t i) {
  int64_t at = 0;
  for (int d = t->tensor.dl.ndim - 1; d >= 0; d--) {
    at += i % t->tensor.shape[d] * t->tensor.strides[d];
    i /= t->tensor.shape[d];
  }
  return at;
}

static void *first(const test_tensor *t) { return (char *)t->tensor.dl.data + t->tensor.dl.byte_offset; }

double test_tensor_get(const test_tensor *t, int64_t i) {
  const int64_t at = position(t, i);
  if (t->kind == TIGON_U8) return ((const uint8_t *)first(t))[at];
  return t->kind & TIGON_INDICES ? (double)tigon_load_index(first(t), t->kind, at)
                                 : (double)tigon_load(first(t), t->kind, at);
}

void test_tensor_set(test_tensor *t, int64_t i, double value) {
  const int64_t at = position(t, i);
  if (t->kind == TIGON_U8)
    ((uint8_t *)first(t))[at] = (uint8_t)value;
  else if (t->kind & TIGON_INDICES)
    tigon_store_index(first(t), t->kind, at, (int64_t)value);
  else
    tigon_store(first(t), t->kind, at, (float)value);
}

void test_tensor_fill_normal(test_tensor *t, test_rng *rng, double scale) {
  for (int64_t i = 0; i < t->count; i++) test_tensor_set(t, i, scale * test_random_normal(rng));
}

void test_tensor_fill_value(test_tensor *t, double value) {
  for (int64_t i = 0; i < t->count; i++) test_tensor_set(t, i, value);
}

double *test_tensor_values(const test_tensor *t) {
  double *values = malloc(((size_t)t->count + 1) * sizeof *values);
  assert_non_null(values);
  for (int64_t i = 0; i < t->count; i++) values[i] = test_tensor_get(t, i);
  return values;
}

void test_tensor_check_surroundings(const test_tensor *t) {
  unsigned char *inside = calloc(t->bytes, 1);
  assert_non_null(inside);
  const size_t width = (size_t)tigon_kind_bytes(t->kind);
  const size_t start = (size_t)((unsigned char *)first(t) - t->block);
  for (int64_t i = 0; i < t->count; i++) memset(inside + start + (size_t)position(t, i) * width, 1, width);
  for (size_t i = 0; i < t->bytes; i++)
    if (!inside[i] && t->block[i] != 0xff) fail_msg("byte %zu outside the tensor's elements was written", i);
  free(inside);
}

void test_tensor_check_same(const char *what, const test_tensor *a, const test_tensor *b) {
  assert_int_equal(a->bytes, b->bytes);
  if (memcmp(a->block, b->block, a->bytes) != 0) fail_msg("%s: bits differ between two runs", what);
}
