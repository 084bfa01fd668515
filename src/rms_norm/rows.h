/* Row addressing and vector steps shared by the CPU's forward and backward. */
#ifndef TIGON_RMS_NORM_ROWS_H
#define TIGON_RMS_NORM_ROWS_H

#include "base/vec.h"
#include "rms_norm/backend.h"

#define INLINE static inline __attribute__((always_inline))

/* Row r's place in each tensor. */
typedef struct row_index {
  int64_t outer, head;
} row_index;

INLINE row_index row_at(const rms_norm_shape *shape, int64_t r) {
  if (shape->heads == 1) return (row_index){.outer = r};
  return (row_index){.outer = r / shape->heads, .head = r % shape->heads};
}

INLINE char *row_of(const rms_norm_tensor *tensor, row_index row) {
  return tensor->data ? tensor->data + row.outer * tensor->outer_bytes + row.head * tensor->head_bytes : NULL;
}

/* n elements; with n the constant VF_LANES the short form vanishes, so that a loop and its tail share one body. */
INLINE vf load_lanes(const char *row, tigon_kind kind, int64_t i, int64_t n) {
  return n == VF_LANES ? vf_load_as(row, kind, i) : vf_load_part(row, kind, i, n);
}

INLINE void store_lanes(char *row, tigon_kind kind, int64_t i, int64_t n, vf v) {
  if (n == VF_LANES)
    vf_store_as(row, kind, i, v);
  else
    vf_store_part(row, kind, i, n, v);
}

/* Outputs of this size go past the caches: they would not stay there until somebody reads them. */
enum { STREAM_BYTES = 1 << 25 };

/* Whether tensor's rows may be streamed, whole vectors at a time. */
static inline bool may_stream(const rms_norm_tensor *tensor, const rms_norm_shape *shape) {
  const int64_t bytes = tigon_kind_bytes(tensor->kind), vector = VF_LANES * bytes;
  if (shape->rows < STREAM_BYTES / bytes / shape->width) return false;
  return (uintptr_t)tensor->data % (uintptr_t)vector == 0 && tensor->outer_bytes % vector == 0 &&
         tensor->head_bytes % vector == 0;
}

/* stream is a constant where this is called. */
INLINE void output_lanes(char *row, tigon_kind kind, bool stream, int64_t i, int64_t n, vf v) {
  if (stream && n == VF_LANES)
    vf_stream_as(row, kind, i, v);
  else
    store_lanes(row, kind, i, n, v);
}

/* What xhat is multiplied by: offset + weight in fp32, or 1 without a weight. */
typedef struct factor_data {
  const char *weight;
  vf offset;
} factor_data;

INLINE vf factor_lanes(factor_data factor, tigon_kind kind, int64_t i, int64_t n) {
  return factor.weight ? factor.offset + load_lanes(factor.weight, kind, i, n) : vf_set(1.0f);
}

/* Asks for the cache line of element i, of a row that is read next: hardware prefetching stops at each row's end. */
INLINE void prefetch_lanes(const char *row, tigon_kind kind, int64_t i) {
  __builtin_prefetch(row + i * tigon_kind_bytes(kind));
}

/* A row sum runs in blocks: inside a block fp32 in SUM_VECTORS vectors of 32 terms a lane, over the blocks float64. */
enum { SUM_VECTORS = 4, SUM_STEP = SUM_VECTORS * VF_LANES, SUM_BLOCK = 32 * SUM_STEP };

#endif
