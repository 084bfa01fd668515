/*
 * The router on the CPU, one row of logits at a time: scores in fp32, the k best from the maxima of blocks of experts,
 * and the gradient through scores, renormalisation, balance loss and z loss.
 */
#include <math.h>

#include "base/vec.h"
#include "moe/backend.h"

/* A row of up to TIGON_MOE_MAX_EXPERTS, padded to whole vectors. */
typedef struct route_row {
  _Alignas(64) float logit[TIGON_MOE_MAX_EXPERTS]; /* NaN past the end */
  _Alignas(64) float p[TIGON_MOE_MAX_EXPERTS];     /* 0 past the end */
  _Alignas(64) float other[TIGON_MOE_MAX_EXPERTS]; /* softmax beside sigmoid, for the z loss; scores that choose */
  _Alignas(64) float rest[TIGON_MOE_MAX_EXPERTS];  /* 1 - p without cancellation; sigmoid in backward only */
  float p_total;                                   /* sum of p; sigmoid only */
  double log_sum;                                  /* logsumexp of the logits; with a z loss only */
} route_row;

static int64_t padded(int64_t experts) { return (experts + VF_LANES - 1) / VF_LANES * VF_LANES; }

/* Scores below the smallest normal number count as 0. */
static inline vf flushed(vf p) { return vf_select(p >= vf_set(0x1p-126f), p, vf_set(0.0f)); }

static float largest(const float *logit, int64_t n) {
  vf most = vf_set(-__builtin_inff());
  for (int64_t e = 0; e < n; e += VF_LANES) most = vf_max(vf_load(logit + e), most); /* most where a logit is NaN */
  return vf_max_lane(most);
}

/* Sum of n values, whole vectors, in blocks so that rounding errors do not add up over 4096 experts. */
static float sum_of(const float *values, int64_t n) {
  vf total = vf_set(0.0f);
  for (int64_t begin = 0; begin < n; begin += 256) {
    const int64_t end = n - begin < 256 ? n : begin + 256;
    vf sum = vf_set(0.0f);
    for (int64_t e = begin; e < end; e += VF_LANES) sum += vf_load(values + e);
    total += sum;
  }
  return vf_sum(total);
}

/* p = softmax of what is not NaN. With +Inf its columns share 1; without anything above -Inf all p are 0. Returns the
 * logsumexp if it is wanted. */
static double softmax(const float *logit, float *p, int64_t n, bool want_log_sum) {
  const float most = largest(logit, n);
  const vf infinite = vf_set(__builtin_inff());
  for (int64_t e = 0; e < n; e += VF_LANES) {
    const vf x = vf_load(logit + e);
    vf share;
    if (most == __builtin_inff())
      share = vf_select(x == infinite, vf_set(1.0f), vf_set(0.0f));
    else if (most == -__builtin_inff())
      share = vf_set(0.0f);
    else
      share = vf_select(x == x, vf_exp(x - vf_set(most)), vf_set(0.0f));
    vf_store(p + e, share);
  }
  const float total = sum_of(p, n);
  const vf divisor = vf_set(total > 0.0f ? total : 1.0f);
  for (int64_t e = 0; e < n; e += VF_LANES) vf_store(p + e, flushed(vf_load(p + e) / divisor));
  return want_log_sum ? (double)most + log((double)total) : 0;
}

static void sigmoid(route_row *row, int64_t n, bool want_rest) {
  const vf zero = vf_set(0.0f), one = vf_set(1.0f);
  for (int64_t e = 0; e < n; e += VF_LANES) {
    const vf x = vf_load(row->logit + e);
    const vf small = vf_exp(vf_select(x > zero, -x, x));
    const vf p = vf_select(x == x, flushed(vf_select(x > zero, one, small) / (one + small)), zero);
    vf_store(row->p + e, p);
    if (want_rest) vf_store(row->rest + e, vf_select(x == x, vf_select(x > zero, small, one) / (one + small), zero));
  }
  row->p_total = sum_of(row->p, n);
}

static void load_row(route_row *row, const tigon_moe_router *r, int64_t token) {
  const int64_t n = padded(r->experts);
  tigon_load_row(row->logit, tigon_at(&r->logits, token), r->logits.kind, r->experts);
  for (int64_t e = r->experts; e < n; e++) row->logit[e] = __builtin_nanf("");
  const bool want_log_sum = r->z_sum || tigon_present(&r->d_z_loss);
  if (!r->sigmoid || want_log_sum)
    row->log_sum = softmax(row->logit, r->sigmoid ? row->other : row->p, n, want_log_sum);
  if (r->sigmoid) sigmoid(row, n, tigon_present(&r->d_logits));
}

/* --- top-k ------------------------------------------------------------------------------------------------------ */

/* The chosen experts, the best first. */
typedef struct best_list {
  int32_t id[TIGON_MOE_MAX_CHOICES];
  int count;
} best_list;

enum { BLOCK = 64 };

/* Integers in the order of the values. What may not be taken (NaN, past the end, already taken) is the least. */
typedef struct key_row {
  _Alignas(64) int32_t key[TIGON_MOE_MAX_EXPERTS];
  int32_t most[TIGON_MOE_MAX_EXPERTS / BLOCK]; /* of each block */
  int64_t blocks;
} key_row;

static int32_t block_most(const int32_t *key) {
  int32_t most = key[0];
  for (int i = 1; i < BLOCK; i++) most = key[i] > most ? key[i] : most;
  return most;
}

static int32_t first_equal(const int32_t *key, int32_t value) {
  int32_t first = BLOCK;
  for (int32_t i = 0; i < BLOCK; i++) {
    const int32_t here = key[i] == value ? i : BLOCK;
    first = here < first ? here : first;
  }
  return first;
}

/* value is NaN from `count` on to the end of the last vector. */
static void fill_keys(key_row *keys, const float *value, int64_t count) {
  const int64_t n = padded(count);
  keys->blocks = (count + BLOCK - 1) / BLOCK;
  for (int64_t e = 0; e < n; e += VF_LANES) {
    const vf x = vf_load(value + e) + vf_set(0.0f); /* -0 equals 0 */
    const vi bits = (vi)x, least = (vi){0} + INT32_MIN;
    const vi key = bits ^ (bits >> 31 & 0x7fffffff), usable = x == x;
    const vi kept = (usable & key) | (~usable & least);
    memcpy(keys->key + e, &kept, sizeof kept);
  }
  for (int64_t e = n; e < keys->blocks * BLOCK; e++) keys->key[e] = INT32_MIN;
  for (int64_t b = 0; b < keys->blocks; b++) keys->most[b] = block_most(keys->key + b * BLOCK);
}

/* Takes the largest: the first block that has it, the first in it. -1: none is left. */
static int64_t take_best(key_row *keys) {
  int64_t b = 0;
  for (int64_t i = 1; i < keys->blocks; i++)
    if (keys->most[i] > keys->most[b]) b = i;
  if (keys->most[b] == INT32_MIN) return -1;
  int32_t *key = keys->key + b * BLOCK;
  const int32_t at = first_equal(key, keys->most[b]);
  key[at] = INT32_MIN;
  keys->most[b] = block_most(key);
  return b * BLOCK + at;
}

/* --- groups and selection bias ---------------------------------------------------------------------------------- */

static void fill_nan(float *values, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++) values[i] = __builtin_nanf("");
}

/* Sum of the `top` largest of n scores from the largest on; NaN where all are NaN. */
static float group_score(const float *score, int64_t n, int top) {
  float best[TIGON_MOE_MAX_CHOICES];
  int count = 0;
  for (int64_t e = 0; e < n; e++) {
    const float v = score[e];
    if (v != v || (count == top && !(v > best[count - 1]))) continue;
    int at = count < top ? count++ : count - 1;
    for (; at > 0 && v > best[at - 1]; at--) best[at] = best[at - 1];
    best[at] = v;
  }
  float sum = count ? best[0] : __builtin_nanf("");
  for (int i = 1; i < count && sum < __builtin_inff(); i++) sum += best[i];
  return sum;
}

/* Makes the values of experts outside the chosen groups NaN. */
static void close_groups(float *value, const float *score, const tigon_moe_router *r, key_row *keys) {
  const int64_t size = r->experts / r->groups;
  _Alignas(64) float group[TIGON_MOE_MAX_EXPERTS];
  bool open[TIGON_MOE_MAX_EXPERTS];
  for (int64_t g = 0; g < r->groups; g++) {
    group[g] = group_score(score + g * size, size, r->group_top);
    open[g] = false;
  }
  fill_nan(group, r->groups, padded(r->groups));
  fill_keys(keys, group, r->groups);
  for (int64_t i = 0; i < r->open_groups; i++) {
    const int64_t g = take_best(keys);
    if (g < 0) break;
    open[g] = true;
  }
  for (int64_t g = 0; g < r->groups; g++)
    if (!open[g]) fill_nan(value, g * size, (g + 1) * size);
}

/* What the experts are chosen by: the logits (which are no longer needed), or p + bias; outside open groups NaN. */
static const float *selection_values(route_row *row, const tigon_moe_router *r, key_row *keys) {
  const float *bias = tigon_present(&r->bias) ? (const float *)(const void *)r->bias.data : NULL;
  const bool scored = bias || (r->groups > 1 && r->group_top > 1);
  if (scored) {
    for (int64_t e = 0; e < r->experts; e++) {
      const float biased = bias ? row->p[e] + bias[e] : row->p[e];
      row->other[e] = row->logit[e] == row->logit[e] ? biased : row->logit[e];
    }
    fill_nan(row->other, r->experts, padded(r->experts));
  }
  float *value = bias ? row->other : row->logit;
  if (r->groups > 1) close_groups(value, scored ? row->other : row->logit, r, keys);
  return value;
}

static void find_best(best_list *best, key_row *keys, const float *value, const tigon_moe_router *r) {
  fill_keys(keys, value, r->experts);
  for (best->count = 0; best->count < r->choices; best->count++) {
    const int64_t id = take_best(keys);
    if (id < 0) return;
    best->id[best->count] = (int32_t)id;
  }
}

/* --- forward ---------------------------------------------------------------------------------------------------- */

static void store_choices(const tigon_moe_router *r, int64_t token, const route_row *row, const best_list *best) {
  float sum = 0.0f;
  for (int j = 0; j < best->count; j++) sum += row->p[best->id[j]];
  float *weights = (float *)(void *)tigon_at(&r->weights, token);
  char *ids = tigon_at(&r->ids, token);
  for (int j = 0; j < r->choices; j++) {
    float w = j < best->count ? row->p[best->id[j]] : 0.0f;
    if (r->renormalize) w = sum > 0.0f ? w / sum : 0.0f;
    weights[j] = w * r->scale;
    tigon_store_index(ids, r->ids.kind, j, j < best->count ? best->id[j] : -1);
  }
}

static void add_probabilities(float *sum, const route_row *row, const tigon_moe_router *r) {
  const float scale = r->sigmoid && row->p_total > 0.0f ? 1.0f / row->p_total : 1.0f;
  for (int64_t e = 0; e < r->experts; e++) sum[e] = vf_fma_one(row->p[e], scale, sum[e]);
}

void TIGON_ISA_FN(tigon_moe_route_chunk)(const tigon_moe_router *r, int64_t chunk) {
  const int64_t begin = chunk * r->chunk;
  const int64_t end = r->tokens - begin < r->chunk ? r->tokens : begin + r->chunk;
  float *p_sum = r->p_sum ? r->p_sum + chunk * r->experts : NULL;
  int64_t *count = r->count_sum ? r->count_sum + chunk * r->experts : NULL;
  for (int64_t e = 0; p_sum && e < r->experts; e++) p_sum[e] = 0.0f;
  for (int64_t e = 0; count && e < r->experts; e++) count[e] = 0;
  double z = 0;
  route_row row;
  best_list best;
  key_row keys;
  for (int64_t t = begin; t < end; t++) {
    load_row(&row, r, t);
    if (r->z_sum && isfinite(row.log_sum)) z += row.log_sum * row.log_sum;
    find_best(&best, &keys, selection_values(&row, r, &keys), r);
    store_choices(r, t, &row, &best);
    for (int j = 0; count && j < best.count; j++) count[best.id[j]]++;
    if (p_sum) add_probabilities(p_sum, &row, r);
  }
  if (r->z_sum) r->z_sum[chunk] = z;
}

/* --- backward --------------------------------------------------------------------------------------------------- */

/* A token's chosen experts. The gradient of a weight, less the mean with renormalisation, times the weight's share:
 * share is p, or p / sum p, so that a sum of tiny p overflows nothing. */
typedef struct chosen {
  int32_t id[TIGON_MOE_MAX_CHOICES];
  float gradient[TIGON_MOE_MAX_CHOICES], share[TIGON_MOE_MAX_CHOICES];
  int count;
} chosen;

static void chosen_gradients(chosen *c, const tigon_moe_router *r, int64_t token, const float *p) {
  c->count = 0;
  if (!tigon_present(&r->d_weights)) return;
  const float *dw = (const float *)(const void *)tigon_at(&r->d_weights, token);
  float sum = 0.0f;
  for (int64_t j = 0; j < r->choices; j++) {
    const int64_t id = tigon_load_index(tigon_at(&r->ids, token), r->ids.kind, j);
    if (id < 0 || id >= r->experts) continue;
    c->id[c->count] = (int32_t)id;
    c->gradient[c->count] = dw[j] * r->scale;
    c->share[c->count++] = p[id];
    sum += p[id];
  }
  if (!r->renormalize) return;
  for (int j = 0; j < c->count; j++) c->share[j] = sum > 0.0f ? c->share[j] / sum : 0.0f;
  for (int pass = 0; pass < 2; pass++) { /* the second takes off what rounding left of the mean */
    float mean = 0.0f;
    for (int j = 0; j < c->count; j++) mean += c->gradient[j] * c->share[j];
    for (int j = 0; j < c->count; j++) c->gradient[j] -= mean;
  }
}

static float dot(const float *a, const float *b, int64_t n) {
  vf sum = vf_set(0.0f);
  int64_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
  float total = vf_sum(sum);
  for (; i < n; i++) total = vf_fma_one(a[i], b[i], total);
  return total;
}

/* d = from - mean; returns sum_i p_i d_i, which is what rounding left of the mean: in saturated rows differences of
 * near-equal numbers are what counts. */
static float less_mean(float *d, const float *from, float mean, const float *p, int64_t n) {
  vf sum = vf_set(0.0f);
  int64_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) {
    const vf v = vf_load(from + i) - vf_set(mean);
    vf_store(d + i, v);
    sum = vf_fma(vf_load(p + i), v, sum);
  }
  float total = vf_sum(sum);
  for (; i < n; i++) {
    d[i] = from[i] - mean;
    total = vf_fma_one(p[i], d[i], total);
  }
  return total;
}

/* d_e = p_e (dp_e - sum_i p_i dp_i). Renormalised weights add nothing to the sum. */
static void softmax_gradients(float *d, const tigon_moe_router *r, const float *p, const chosen *c) {
  const int64_t n = r->experts;
  const float *dp = r->renormalize && r->balance ? r->balance : d;
  for (int64_t e = 0; dp == d && e < n; e++) d[e] = r->balance ? r->balance[e] : 0.0f;
  for (int j = 0; !r->renormalize && j < c->count; j++) d[c->id[j]] += c->gradient[j];
  if (r->balance || !r->renormalize) {
    const float rest = less_mean(d, dp, dot(p, dp, n), p, n);
    for (int64_t e = 0; e < n; e++) d[e] = p[e] * (d[e] - rest);
  }
  for (int j = 0; r->renormalize && j < c->count; j++) d[c->id[j]] += c->gradient[j] * c->share[j];
}

/* d_e = dp_e p_e (1 - p_e) */
static void sigmoid_gradients(float *d, const tigon_moe_router *r, const route_row *row, const chosen *c) {
  const float *p = row->p, *rest = row->rest;
  const int64_t n = r->experts;
  if (r->balance) {
    const float scale = row->p_total > 0.0f ? 1.0f / row->p_total : 0.0f;
    const float mean = less_mean(d, r->balance, dot(p, r->balance, n) * scale, p, n) * scale;
    for (int64_t e = 0; e < n; e++) d[e] = (d[e] - mean) * (p[e] * scale) * rest[e];
  } else {
    for (int64_t e = 0; e < n; e++) d[e] = 0.0f;
  }
  for (int j = 0; j < c->count; j++) d[c->id[j]] += c->gradient[j] * c->share[j] * rest[c->id[j]];
}

/* d (E) = gradient of the logits. */
static void logit_gradients(float *d, const tigon_moe_router *r, const route_row *row, const chosen *c) {
  if (r->sigmoid)
    sigmoid_gradients(d, r, row, c);
  else
    softmax_gradients(d, r, row->p, c);
  if (!tigon_present(&r->d_z_loss) || !isfinite(row->log_sum)) return;
  const float z = (float)(r->z_scale * row->log_sum);
  const float *share = r->sigmoid ? row->other : row->p;
  for (int64_t e = 0; e < r->experts; e++) d[e] = vf_fma_one(z, share[e], d[e]);
}

void TIGON_ISA_FN(tigon_moe_route_backward_chunk)(const tigon_moe_router *r, int64_t chunk) {
  const int64_t begin = chunk * r->chunk;
  const int64_t end = r->tokens - begin < r->chunk ? r->tokens : begin + r->chunk;
  route_row row;
  chosen c;
  for (int64_t t = begin; t < end; t++) {
    load_row(&row, r, t);
    chosen_gradients(&c, r, t, row.p);
    float *d = row.logit; /* no longer needed */
    logit_gradients(d, r, &row, &c);
    tigon_store_row(tigon_at(&r->d_logits, t), r->d_logits.kind, d, r->experts);
  }
}
