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
                   "expected a multiple of the %" PRId64 " query-key heads, got %" PRId64 " heads", heads, value_heads);
}

tigon_view lightning_check_vector(tigon_checker *check, const char *name, const DLTensor *vector, unsigned kinds,
                                  int64_t count) {
  return tigon_check_tensor(check, name, vector, kinds, TIGON_OPTIONAL | TIGON_ANY_STRIDE, 1, &count);
}

tigon_view lightning_check_state(tigon_checker *check, const problem *p, const char *name, const DLTensor *state,
                                 unsigned flags) {
  return tigon_check_tensor(check, name, state, TIGON_F32, flags, 4,
                            (int64_t[]){p->slots.count, p->value_heads, p->value_size, p->key_size});
}

/* q, or k where there is no q: it gives the sizes. */
static tigon_view check_first(tigon_checker *check, problem *p, const char *name, const DLTensor *tensor) {
  const tigon_view view = tigon_check_tensor(check, name, tensor, TIGON_FLOATS, 0, 4, (int64_t[]){-1, -1, -1, -1});
  p->batch = view.shape[0];
  p->tokens = view.shape[1];
  p->heads = view.shape[2];
  p->key_size = view.shape[3];
  lightning_check_size(check, name, "a number of heads", p->heads, INT32_MAX);
  lightning_check_size(check, name, "a key size", p->key_size, MAX_SIZE);
  return view;
}

void lightning_check_inputs(tigon_checker *check, problem *p, bool with_q, const DLTensor *q, const DLTensor *k,
                            const DLTensor *v, const DLTensor *decay, const DLTensor *cu_seqlens) {
  if (with_q) p->q = check_first(check, p, "q", q);
  p->k = with_q ? tigon_check_tensor(check, "k", k, p->q.kind, 0, 4, p->q.shape) : check_first(check, p, "k", k);
  p->v = tigon_check_tensor(check, "v", v, TIGON_FLOATS, 0, 4, (int64_t[]){p->batch, p->tokens, -1, -1});
  p->value_heads = p->v.shape[2];
  p->value_size = p->v.shape[3];
  lightning_check_value_heads(check, p->heads, p->value_heads);
  lightning_check_size(check, "v", "a value size", p->value_size, MAX_SIZE);
  p->decay = lightning_check_decay(check, decay, p->heads, p->value_heads);
  p->cu_seqlens = lightning_check_vector(check, "cu_seqlens", cu_seqlens, TIGON_INDICES, -1);
  p->sequences = p->batch;
  if (tigon_present(&p->cu_seqlens)) {
    p->sequences = p->cu_seqlens.shape[0] - 1;
    tigon_check_that(check, p->sequences >= 0, "cu_seqlens", "expected shape (N + 1), got (0)");
    tigon_check_that(check, p->batch == 1, "cu_seqlens", "expected a batch of 1 for packed sequences, got %" PRId64,
                     p->batch);
  }
  p->slots.count = p->sequences;
}

tigon_view lightning_check_states(tigon_checker *check, problem *p, const DLTensor *state_indices,
                                  const DLTensor *has_initial_state, const DLTensor *initial_state,
                                  const DLTensor *final_state, unsigned final_flags) {
  p->slots.state_indices = lightning_check_vector(check, "state_indices", state_indices, TIGON_INDICES, p->sequences);
  if (tigon_present(&p->slots.state_indices)) p->slots.count = -1;
  p->initial_state = lightning_check_state(check, p, "initial_state", initial_state, TIGON_OPTIONAL);
  if (tigon_present(&p->initial_state)) p->slots.count = p->initial_state.shape[0];
  const tigon_view final = lightning_check_state(check, p, "final_state", final_state, TIGON_OUTPUT | final_flags);
  if (tigon_present(&final)) p->slots.count = final.shape[0];
  tigon_check_that(check, p->slots.count >= 0, "state_indices", "expected NULL without initial_state and final_state");
  p->slots.has_initial_state =
      lightning_check_vector(check, "has_initial_state", has_initial_state, TIGON_FLAGS, p->sequences);
  tigon_check_that(check, !tigon_present(&p->slots.has_initial_state) || tigon_present(&p->initial_state),
                   "has_initial_state", "expected NULL without initial_state");
  lightning_check_output_apart(check, p, "final_state", &final);
  tigon_check_same_or_apart(check, "final_state", &final, "initial_state", &p->initial_state);
  return final;
}

void lightning_check_output_apart(tigon_checker *check, const problem *p, const char *name, const tigon_view *output) {
  tigon_check_apart(check, name, output, "q", &p->q);
  tigon_check_apart(check, name, output, "k", &p->k);
  tigon_check_apart(check, name, output, "v", &p->v);
  tigon_check_apart(check, name, output, "decay", &p->decay);
  tigon_check_apart(check, name, output, "cu_seqlens", &p->cu_seqlens);
  tigon_check_apart(check, name, output, "state_indices", &p->slots.state_indices);
  tigon_check_apart(check, name, output, "has_initial_state", &p->slots.has_initial_state);
}

int64_t *lightning_take_bounds(tigon_arena *arena, const tigon_view *given) {
  if (!tigon_present(given)) return NULL;
  return tigon_arena_take(arena, (uint64_t)given->shape[0] * sizeof(int64_t));
}

void lightning_fill_bounds(const tigon_view *given, const char *name, int64_t most, bool from_zero, const char *op,
                           tigon_context *context, int64_t *bounds) {
  int64_t last = 0;
  bool noted = false;
  for (int64_t i = 0; bounds && i < given->shape[0]; i++) {
    const int64_t value = tigon_load_index(given->data, given->kind, i * given->stride[0]);
    const bool good = value >= last && value <= most && (i > 0 || !from_zero || value == 0);
    if (!good && !noted) {
      tigon_context_note(context, TIGON_INVALID_ARGUMENT, op, name, i, value);
      noted = true;
    }
    if (value > last) last = value < most ? value : most;
    bounds[i] = last;
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

void lightning_note_slots(const slots *s, const char *op, tigon_context *context) {
  const tigon_view *indices = &s->state_indices;
  /* Without tokens an expanded vector may be of any length: its first element tells all. */
  const int64_t count = indices->shape[0] > 0 && indices->stride[0] == 0 ? 1 : indices->shape[0];
  for (int64_t i = 0; tigon_present(indices) && i < count; i++) {
    const int64_t slot = tigon_load_index(indices->data, indices->kind, i * indices->stride[0]);
    if (slot >= -1 && slot < s->count) continue;
    tigon_context_note(context, TIGON_INVALID_ARGUMENT, op, "state_indices", i, slot);
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
                .slots = p->slots,
                .sequences = p->sequences,
                .tokens = p->tokens,
                .heads = p->heads,
                .group = p->value_heads / p->heads};
}

void lightning_scan_run(scan *s, int threads, void *scratch) {
  /* Without tokens the number of sequences says nothing about memory: it may be enormous. */
  if (s->tokens == 0 && !tigon_present(&s->state_out)) return;
  s->scratch = scratch;
  tigon_parallel(threads, lightning_scan_units(s), TIGON_ISA_PICK(tigon_lightning_scan_unit), s);
}
