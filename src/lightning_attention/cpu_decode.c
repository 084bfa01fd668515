/* One token of each sequence: every row of the state is read, updated, multiplied by q and written once. */
#include <math.h>

#include "base/vec.h"
#include "lightning_attention/backend.h"

enum { MAX_KEY = 1024 };

/* lambda = keep - lose with keep 1 where lambda is 1/2 or more: the rounding of lambda itself, to the same side token
 * by token, would drift away from prefill. */
typedef struct factors {
  float keep, lose;
} factors;

static factors factors_of(double decay) {
  if (decay > 0.69) return (factors){(float)exp(-decay), 0.0f};
  return (factors){1.0f, (float)-expm1(-decay)};
}

/* row = lambda * row + v * k; returns row . q. The order of the sum depends on n alone. */
static float update_row(float *row, const float *k, const float *q, int64_t n, factors lambda, float v) {
  vf dot[2] = {vf_set(0.0f), vf_set(0.0f)};
  int64_t i = 0;
  for (; i + 2 * VF_LANES <= n; i += 2 * VF_LANES)
    for (int part = 0; part < 2; part++) {
      const int64_t at = i + part * VF_LANES;
      const vf old = vf_load(row + at);
      const vf change = vf_fma(vf_set(-lambda.lose), old, vf_set(v) * vf_load(k + at));
      const vf s = vf_fma(vf_set(lambda.keep), old, change);
      vf_store(row + at, s);
      dot[part] = vf_fma(s, vf_load(q + at), dot[part]);
    }
  float rest = 0.0f;
  for (; i < n; i++) {
    row[i] = vf_fma_one(lambda.keep, row[i], vf_fma_one(-lambda.lose, row[i], v * k[i]));
    rest = vf_fma_one(row[i], q[i], rest);
  }
  return vf_sum(dot[0] + dot[1]) + rest;
}

void TIGON_ISA_FN(tigon_lightning_decode_unit)(void *context, int64_t chunk, int slot) {
  (void)slot;
  const decode *d = context;
  const int64_t value_heads = d->v.shape[1], v_size = d->v.shape[2], k_size = d->q.shape[2];
  const int64_t blocks = (v_size + d->rows - 1) / d->rows;
  const int64_t first = chunk % blocks * d->rows, head = chunk / blocks % value_heads, n = chunk / blocks / value_heads;
  const int64_t query_head = head / (value_heads / d->q.shape[1]);
  const int64_t pool_slot = lightning_slot(&d->slots, n);
  char *out = tigon_at(&d->out, n) + head * d->out.stride[1] * tigon_kind_bytes(d->out.kind);
  if (pool_slot < 0) {
    for (int64_t row = first; row < v_size && row < first + d->rows; row++) tigon_store(out, d->out.kind, row, 0.0f);
    return;
  }
  float q[MAX_KEY], k[MAX_KEY];
  tigon_load_row(q, tigon_at(&d->q, n) + query_head * d->q.stride[1] * tigon_kind_bytes(d->q.kind), d->q.kind, k_size);
  tigon_load_row(k, tigon_at(&d->k, n) + query_head * d->k.stride[1] * tigon_kind_bytes(d->k.kind), d->k.kind, k_size);
  const factors lambda = factors_of((double)lightning_decay(&d->decay, head, value_heads));
  float *state = (float *)(void *)d->state.data + pool_slot * d->state.stride[0] + head * d->state.stride[1];
  const char *v = tigon_at(&d->v, n) + head * d->v.stride[1] * tigon_kind_bytes(d->v.kind);
  for (int64_t row = first; row < v_size && row < first + d->rows; row++) {
    const float o = update_row(state + row * d->state.stride[2], k, q, k_size, lambda, tigon_load(v, d->v.kind, row));
    tigon_store(out, d->out.kind, row, d->scale * o);
  }
}
