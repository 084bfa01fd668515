#include "lightning_attention/problem.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/context.h"
#include "base/pool.h"

tigon_view lightning_check_decay(tigon_checker *check, const DLTensor *decay, int64_t heads, int64_t value_heads) {
  const tigon_view view = tigon_check_tensor(check, "decay", decay, TIGON_F32, TIGON_ANY_STRIDE, 1, (int64_t[]){-1});
  tigon_check_that(check, view.shape[0] == heads || view.shape[0] == value_heads, "decay",
                   "expected shape (%" PRId64 ") or (%" PRId64 "), got (%" PRId64 ")", heads, value_heads,
                   view.shape[0]);
  return view;
}

float lightning_check_scale(tigon_checker *check, float scale) {
  tigon_check_that(check, isfinite(scale), "scale", "expected a finite number, got %g", (double)scale);
  return scale == 0.0f ? 1.0f : scale;
}

void lightning_check_size(tigon_checker *check, const char *name, const char *what, int64_t size, int64_t most) {
  tigon_check_that(check, size >= 1 && size <= most, name, "expected %s from 1 to %" PRId64 ", got %" PRId64, what,
                   most, size);
}

void lightning_check_value_heads(tigon_checker *check, int64_t heads, int64_t value_heads) {
  if (check->status != TIGON_OK) return;
  tigon_check_that(check, value_heads >= 1 && value_heads <= INT32_MAX && value_heads % heads == 0, "v",
                   "expected a multiple of the %" PRId64 " heads of q, got %" PRId64 " heads", heads, value_heads);
}

tigon_view lightning_check_state(tigon_checker *check, const problem *p, const char *name, const DLTensor *state,
                                 unsigned flags) {
  return tigon_check_tensor(check, name, state, TIGON_F32, flags | TIGON_OPTIONAL, 4,
                            (int64_t[]){p->sequences, p->value_heads, p->value_size, p->key_size});
}

void lightning_check_inputs(tigon_checker *check, problem *p, const DLTensor *q, const DLTensor *k, const DLTensor *v,
                            const DLTensor *decay, const DLTensor *cu_seqlens, const DLTensor *initial_state,
                            float scale) {
  p->q = tigon_check_tensor(check, "q", q, TIGON_FLOATS, 0, 4, (int64_t[]){-1, -1, -1, -1});
  p->batch = p->q.shape[0];
  p->tokens = p->q.shape[1];
  p->heads = p->q.shape[2];
  p->key_size = p->q.shape[3];
  lightning_check_size(check, "q", "a number of heads", p->heads, INT32_MAX);
  lightning_check_size(check, "q", "a key size", p->key_size, MAX_SIZE);
  p->k = tigon_check_tensor(check, "k", k, p->q.kind, 0, 4, p->q.shape);
  p->v = tigon_check_tensor(check, "v", v, TIGON_FLOATS, 0, 4, (int64_t[]){p->batch, p->tokens, -1, -1});
  p->value_heads = p->v.shape[2];
  p->value_size = p->v.shape[3];
  lightning_check_value_heads(check, p->heads, p->value_heads);
  lightning_check_size(check, "v", "a value size", p->value_size, MAX_SIZE);
  p->decay = lightning_check_decay(check, decay, p->heads, p->value_heads);
  p->cu_seqlens = tigon_check_tensor(check, "cu_seqlens", cu_seqlens, TIGON_INDICES, TIGON_OPTIONAL | TIGON_ANY_STRIDE,
                                     1, (int64_t[]){-1});
  p->sequences = p->batch;
  if (tigon_present(&p->cu_seqlens)) {
    p->sequences = p->cu_seqlens.shape[0] - 1;
    tigon_check_that(check, p->sequences >= 0, "cu_seqlens", "expected shape (N + 1), got (0)");
    tigon_check_that(check, p->batch == 1, "cu_seqlens", "expected a batch of 1 for packed sequences, got %" PRId64,
                     p->batch);
  }
  p->initial_state = lightning_check_state(check, p, "initial_state", initial_state, 0);
  p->scale = lightning_check_scale(check, scale);
}

void lightning_check_output_apart(tigon_checker *check, const problem *p, const char *name, const tigon_view *output) {
  tigon_check_apart(check, name, output, "q", &p->q);
  tigon_check_apart(check, name, output, "k", &p->k);
  tigon_check_apart(check, name, output, "v", &p->v);
  tigon_check_apart(check, name, output, "decay", &p->decay);
  tigon_check_apart(check, name, output, "cu_seqlens", &p->cu_seqlens);
}

void lightning_check_same_strides(tigon_checker *check, const char *name, const tigon_view *written,
                                  const char *read_name, const tigon_view *read) {
  if (check->query || !tigon_present(written) || !tigon_present(read) || written->data != read->data) return;
  if (tigon_elements(written) == 0) return;
  for (int i = 0; i < 4; i++)
    tigon_check_that(check, written->shape[i] == 1 || written->stride[i] == read->stride[i], name,
                     "expected the strides of %s, whose memory it has: %" PRId64 " in dimension %d, got %" PRId64,
                     read_name, read->stride[i], i, written->stride[i]);
}

int64_t *lightning_take_bounds(tigon_arena *arena, const problem *p) {
  if (!tigon_present(&p->cu_seqlens)) return NULL;
  return tigon_arena_take(arena, (uint64_t)(p->sequences + 1) * sizeof(int64_t));
}

void lightning_fill_bounds(const problem *p, const char *op, tigon_context *context, int64_t *bounds) {
  int64_t most = 0;
  bool noted = false;
  for (int64_t i = 0; bounds && i <= p->sequences; i++) {
    const int64_t value = tigon_load_index(p->cu_seqlens.data, p->cu_seqlens.kind, i * p->cu_seqlens.stride[0]);
    const bool good = value >= most && value <= p->tokens && (i > 0 || value == 0);
    if (!good && !noted) {
      tigon_context_note(context, TIGON_INVALID_ARGUMENT, op, "cu_seqlens", i, value);
      noted = true;
    }
    if (value > most) most = value < p->tokens ? value : p->tokens;
    bounds[i] = most;
  }
}

void lightning_note_decay(const tigon_view *decay, const char *op, tigon_context *context) {
  for (int64_t i = 0; i < decay->shape[0]; i++) {
    const float s = ((const float *)(const void *)decay->data)[i * decay->stride[0]];
    if (s >= 0.0f) continue;
    tigon_context_note(context, TIGON_INVALID_ARGUMENT, op, "decay", i, (int64_t)tigon_float_to_bits(s));
    return;
  }
}

typedef struct zeroing {
  const tigon_view *output;
  int64_t begin, end; /* the tokens in sequences */
} zeroing;

enum { ZEROED_TOKENS = 256 };

static void zero_tokens(void *context, int64_t chunk, int slot) {
  (void)slot;
  const zeroing *z = context;
  const tigon_view *o = z->output;
  const int64_t bytes = tigon_kind_bytes(o->kind);
  for (int64_t t = chunk * ZEROED_TOKENS; t < o->shape[1] && t < (chunk + 1) * ZEROED_TOKENS; t++) {
    if (t >= z->begin && t < z->end) continue;
    for (int64_t h = 0; h < o->shape[2]; h++)
      memset(o->data + (t * o->stride[1] + h * o->stride[2]) * bytes, 0, (size_t)(o->shape[3] * bytes));
  }
}

void lightning_zero_outside(const problem *p, const int64_t *bounds, int threads, const tigon_view *output) {
  if (!bounds || !tigon_present(output)) return;
  zeroing z = {.output = output, .begin = bounds[0], .end = bounds[p->sequences]};
  if (z.begin == 0 && z.end == p->tokens) return;
  tigon_parallel(threads, (p->tokens + ZEROED_TOKENS - 1) / ZEROED_TOKENS, zero_tokens, &z);
}

scan lightning_scan_of(const problem *p, const int64_t *bounds) {
  return (scan){.inner = 1.0f,
                .outer = 1.0f,
                .decay = p->decay,
                .bounds = bounds,
                .sequences = p->sequences,
                .tokens = p->tokens,
                .heads = p->heads,
                .group = p->value_heads / p->heads};
}

void lightning_scan_run(scan *s, int threads, void *scratch) {
  s->scratch = scratch;
  tigon_parallel(threads, lightning_scan_units(s), TIGON_ISA_PICK(tigon_lightning_scan_unit), s);
}
