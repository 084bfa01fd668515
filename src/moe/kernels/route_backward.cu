/*
 * The router's gradient (the formulas: include/tigon/moe.h). logits and d_logits (T, E), topk_ids and d_topk_weights
 * (T, k) with rows of any stride. Where the gradient of the balance loss or a record is wanted, a first kernel counts
 * the routes and finds the first bad id. A token is the work of a warp or of a block: it reads its logits and writes its
 * gradient once, which is all that the memory does.
 */
#include "kernel/launch.cuh"
#include "moe/kernels/record.cuh"
#include "moe/kernels/route_row.cuh"

__device__ __forceinline__ int64_t load_id(const char *ids, bool wide, int64_t at) {
  return wide ? ((const int64_t *)ids)[at] : ((const int32_t *)ids)[at];
}

/* Integers alone are added up atomically, so that the order does not matter. */
extern "C" __global__ void __launch_bounds__(MOE_ROUTE_THREADS)
    moe_route_count(const __grid_constant__ moe_route_count_params p) {
  extern __shared__ int counts[];
  const int64_t step = (int64_t)gridDim.x * MOE_ROUTE_THREADS;
  unsigned long long bad = 0;
  for (int e = (int)threadIdx.x; p.count && e < p.experts; e += MOE_ROUTE_THREADS) counts[e] = 0;
  __syncthreads();
  for (int64_t r = (int64_t)blockIdx.x * MOE_ROUTE_THREADS + threadIdx.x; r < p.routes; r += step) {
    const int64_t token = r / p.choices;
    const int64_t id = load_id(p.ids, p.wide_ids, token * p.id_stride + (r - token * p.choices));
    if (id >= p.experts)
      bad = max(bad, (unsigned long long)(p.routes - r));
    else if (id >= 0 && p.count)
      atomicAdd(&counts[id], 1);
  }
  if (bad) atomicMax(p.bad, bad);
  __syncthreads();
  for (int e = (int)threadIdx.x; p.count && e < p.experts; e += MOE_ROUTE_THREADS)
    if (counts[e]) atomicAdd(&p.count[e], (unsigned long long)counts[e]);
}

__device__ __forceinline__ void note_first(const moe_route_backward_params &p) {
  if (*p.bad == 0) return;
  const int64_t route = p.rows.tokens * p.rows.choices - (int64_t)*p.bad, token = route / p.rows.choices;
  const int64_t at = token * p.id_stride + (route - token * p.rows.choices);
  note(p.record, p.event, route, load_id(p.ids, p.rows.wide_ids, at));
}

/* A lane's choice. The gradient of its weight, less the mean with renormalisation, and the weight's share: p, or
 * p / sum p, so that a sum of tiny p overflows nothing. */
struct choice {
  int expert; /* -1: none */
  float gradient, share;
  float rest; /* 1 - p; sigmoid only */
};

__device__ __forceinline__ choice load_choice(const moe_route_backward_params &p, const softmax_sums &sums,
                                              const char *row, int64_t token) {
  const moe_route_rows &r = p.rows;
  const int lane = (int)threadIdx.x % WARP;
  choice c = {-1, 0, 0, 0};
  if (!p.d_weights) return c;
  if (lane < r.choices) {
    const int64_t id = load_id(p.ids, r.wide_ids, token * p.id_stride + lane);
    if (id >= 0 && id < r.experts) {
      const float x = load_element(row, r.logit_kind, id);
      c.expert = (int)id;
      c.gradient = p.d_weights[token * p.d_weight_stride + lane] * r.scale;
      c.share = score(r, sums, x);
      c.rest = r.sigmoid ? sigmoid(x, true) : 0.0f;
    }
  }
  if (!r.renormalize) return c;
  const float sum = sum_over_lanes(c.share, WARP);
  c.share = sum > 0.0f ? c.share / sum : 0.0f;
  for (int pass = 0; pass < 2; pass++) { /* the second takes off what rounding left of the mean */
    const float mean = sum_over_lanes(c.gradient * c.share, WARP);
    if (c.expert >= 0) c.gradient -= mean;
  }
  return c;
}

/* d[expert] += value for each choice, in order. */
template <int N, bool WIDE>
__device__ __forceinline__ void add_to_experts(float (&d)[N], int choices, int expert, float value) {
  for (int j = 0; j < choices; j++) {
    const int e = __shfl_sync(ALL_LANES, expert, j) - token_thread<WIDE>();
    const float add = __shfl_sync(ALL_LANES, value, j);
#pragma unroll
    for (int n = 0; n < N; n++)
      if (e == n * token_threads<WIDE>()) d[n] += add;
  }
}

/* d less its mean, weights[n] * scale being the weights. In saturated rows differences of near-equal numbers are what
 * counts: all are taken relative to the one with the largest weight, so that nothing is left of equal ones, and the
 * second pass takes off what rounding left of the mean. */
template <int N, bool WIDE>
__device__ __forceinline__ void take_off_mean(token_room &room, float (&d)[N], const float (&weights)[N], float scale) {
  best_key best = {UNUSABLE, INT_MAX};
#pragma unroll
  for (int n = 0; n < N; n++)
    if (key_of(weights[n]) > best.key) best = {key_of(weights[n]), token_thread<WIDE>() + n * token_threads<WIDE>()};
  best = token_best<WIDE>(room, best);
  float at_best = 0;
#pragma unroll
  for (int n = 0; n < N; n++)
    if (token_thread<WIDE>() + n * token_threads<WIDE>() == best.expert) at_best = d[n];
  at_best = token_sum<WIDE>(room, at_best);
#pragma unroll
  for (int n = 0; n < N; n++) d[n] -= at_best;
#pragma unroll
  for (int pass = 0; pass < 2; pass++) {
    float mean = 0;
#pragma unroll
    for (int n = 0; n < N; n++) mean = __fmaf_rn(weights[n] * scale, d[n], mean);
    mean = token_sum<WIDE>(room, mean);
#pragma unroll
    for (int n = 0; n < N; n++) d[n] -= mean;
  }
}

/* d_e = p_e (dp_e - sum_i p_i dp_i), from the gradients of P_e in d. Renormalised weights add nothing to the sum. */
template <int N, bool WIDE>
__device__ __forceinline__ void softmax_gradients(const moe_route_backward_params &p, token_room &room,
                                                  const float (&scores)[N], const choice &c, float (&d)[N]) {
  const moe_route_rows &r = p.rows;
  if (!r.renormalize) add_to_experts<N, WIDE>(d, r.choices, c.expert, c.gradient);
  if (p.d_loss || !r.renormalize) {
    take_off_mean<N, WIDE>(room, d, scores, 1.0f);
#pragma unroll
    for (int n = 0; n < N; n++) d[n] *= scores[n];
  }
  if (r.renormalize) add_to_experts<N, WIDE>(d, r.choices, c.expert, c.gradient * c.share);
}

/* d_e = dp_e p_e (1 - p_e) */
template <int N, bool WIDE>
__device__ __forceinline__ void sigmoid_gradients(const moe_route_backward_params &p, token_room &room,
                                                  const float (&x)[N], const float (&scores)[N], const choice &c,
                                                  float (&d)[N]) {
  if (p.d_loss) {
    float total = 0;
#pragma unroll
    for (int n = 0; n < N; n++) total += scores[n];
    total = token_sum<WIDE>(room, total);
    const float scale = total > 0.0f ? 1.0f / total : 0.0f;
    take_off_mean<N, WIDE>(room, d, scores, scale);
#pragma unroll
    for (int n = 0; n < N; n++) d[n] *= scores[n] * scale * sigmoid(x[n], true);
  }
  add_to_experts<N, WIDE>(d, p.rows.choices, c.expert, c.gradient * c.share * c.rest);
}

template <int N, bool WIDE>
__device__ __forceinline__ void store_gradients(const moe_route_backward_params &p, int64_t token,
                                                const float (&d)[N]) {
  char *row = p.d_logits + token * p.d_logit_row_bytes;
#pragma unroll
  for (int n = 0; n < N; n++) {
    const int e = token_thread<WIDE>() + n * token_threads<WIDE>();
    if (e < p.rows.experts) store_element(row, p.d_logit_kind, e, d[n]);
  }
}

/* balance (E, shared): the gradient of each token's P_e, d_balance_loss E f_e / T. */
template <int N, bool WIDE>
__device__ __forceinline__ void differentiate_token(const moe_route_backward_params &p, token_room &room,
                                                    const float *balance, double z_scale, int64_t token) {
  const moe_route_rows &r = p.rows;
  const char *row = r.logits + token * r.logit_row_bytes;
  float x[N], scores[N], d[N];
  load_logits<N, WIDE>(r, row, x);
  softmax_sums sums = {0, 0};
  if (!r.sigmoid || p.d_z_loss) sums = softmax_of<N, WIDE>(room, x);
#pragma unroll
  for (int n = 0; n < N; n++) {
    const int e = token_thread<WIDE>() + n * token_threads<WIDE>();
    scores[n] = score(r, sums, x[n]);
    d[n] = p.d_loss && e < r.experts ? balance[e] : 0.0f;
  }
  const choice c = load_choice(p, sums, row, token);
  if (r.sigmoid)
    sigmoid_gradients<N, WIDE>(p, room, x, scores, c, d);
  else
    softmax_gradients<N, WIDE>(p, room, scores, c, d);
  const double logs = p.d_z_loss ? log_sum(sums) : INFINITY;
  if (isfinite(logs)) {
    const float z = (float)(z_scale * logs);
#pragma unroll
    for (int n = 0; n < N; n++) d[n] = __fmaf_rn(z, r.sigmoid ? softmax(sums, x[n]) : scores[n], d[n]);
  }
  store_gradients<N, WIDE>(p, token, d);
}

template <int N, bool WIDE> __device__ __forceinline__ void differentiate_tokens(const moe_route_backward_params &p) {
  extern __shared__ float balance[];
  __shared__ token_words words;
  const int side_by_side = MOE_ROUTE_THREADS / token_threads<WIDE>();
  const double tokens = (double)p.rows.tokens, experts = p.rows.experts;
  token_room room = {&words, 0};
  wait_for_previous_kernel();
  if (p.record && blockIdx.x == 0 && threadIdx.x == 0) note_first(p);
  if (p.d_loss) {
    const double scale = (double)*p.d_loss * experts / (tokens * p.rows.choices * tokens);
    for (int e = (int)threadIdx.x; e < p.rows.experts; e += MOE_ROUTE_THREADS)
      balance[e] = (float)(scale * (double)p.count[e]);
    __syncthreads();
  }
  const double z_scale = p.d_z_loss ? 2 * (double)*p.d_z_loss / tokens : 0;
  for (int64_t t = (int64_t)blockIdx.x * side_by_side + (int)threadIdx.x / token_threads<WIDE>(); t < p.rows.tokens;
       t += (int64_t)gridDim.x * side_by_side)
    differentiate_token<N, WIDE>(p, room, balance, z_scale, t);
}

/* resident: blocks on a multiprocessor, which bound the registers of a thread. */
#define ROUTE_BACKWARD(name, n, wide, resident)                             \
  extern "C" __global__ void __launch_bounds__(MOE_ROUTE_THREADS, resident) \
      name(const __grid_constant__ moe_route_backward_params p) {           \
    differentiate_tokens<n, wide>(p);                                       \
  }
ROUTE_BACKWARD(moe_route_backward_4, 4, false, 4)
ROUTE_BACKWARD(moe_route_backward_8, 8, false, 3)
ROUTE_BACKWARD(moe_route_backward_16, 16, false, 2)
ROUTE_BACKWARD(moe_route_backward_32, 32, false, 1)
ROUTE_BACKWARD(moe_route_backward_wide, 16, true, 2)
