#include "elementwise.h"

#include <math.h>
#include <string.h>
#include <tigon/tigon.h>

#define BODY static inline __attribute__((always_inline))

/* exp(x) to about 2 units in the last place, in a form that compilers turn into vector code: 2^n times a polynomial. */
BODY float exp_near(float x) {
  x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the fraction bits now hold n */
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  uint32_t bits, power;
  memcpy(&bits, &shifted, sizeof bits);
  memcpy(&power, &p, sizeof power);
  power += bits << 23;
  memcpy(&p, &power, sizeof p);
  return p;
}

BODY float sigmoid(float x) { return 1.0f / (1.0f + exp_near(-x)); }

BODY void silu_body(const float *x, int64_t x_stride, float *out, int64_t out_stride, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; row++) {
    const float *restrict from = x + row * x_stride;
    float *restrict to = out + row * out_stride;
    for (int64_t i = 0; i < n; i++) to[i] = from[i] * sigmoid(from[i]);
  }
}

BODY void silu_backward_body(const float *x, float *d, int64_t stride, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; row++) {
    const float *restrict from = x + row * stride;
    float *restrict to = d + row * stride;
    for (int64_t i = 0; i < n; i++) {
      const float s = sigmoid(from[i]);
      to[i] *= s * (1.0f + from[i] * (1.0f - s));
    }
  }
}

BODY void gate_body(const float *x, const float *gate, int64_t gate_stride, float *out, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; row++) {
    const float *restrict from = x + row * n, *restrict g = gate + row * gate_stride;
    float *restrict to = out + row * n;
    for (int64_t i = 0; i < n; i++) to[i] = from[i] * sigmoid(g[i]);
  }
}

BODY void gate_backward_body(const float *x, const float *gate, int64_t gate_stride, float *d, float *d_gate,
                             int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; row++) {
    const float *restrict from = x + row * n, *restrict g = gate + row * gate_stride;
    float *restrict dx = d + row * n, *restrict dg = d_gate + row * gate_stride;
    for (int64_t i = 0; i < n; i++) {
      const float s = sigmoid(g[i]);
      dg[i] = dx[i] * from[i] * s * (1.0f - s);
      dx[i] *= s;
    }
  }
}

BODY double squares_body(const float *x, int64_t n) {
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    const int64_t end = begin + 1024 < n ? begin + 1024 : n;
    float lanes[16] = {0};
    int64_t i = begin;
    for (; i + 16 <= end; i += 16)
      for (int lane = 0; lane < 16; lane++) lanes[lane] += x[i + lane] * x[i + lane];
    for (; i < end; i++) lanes[0] += x[i] * x[i];
    for (int lane = 0; lane < 16; lane++) sum += (double)lanes[lane];
  }
  return sum;
}

BODY void adamw_body(const adamw_step *step, const float *restrict gradient, float *restrict weight,
                     float *restrict moment, float *restrict variance, int64_t n) {
  const adamw_step s = *step;
  for (int64_t i = 0; i < n; i++) {
    const float g = gradient[i] * s.gradient_scale;
    moment[i] = s.beta1 * moment[i] + (1.0f - s.beta1) * g;
    variance[i] = s.beta2 * variance[i] + (1.0f - s.beta2) * g * g;
    const float direction = moment[i] * s.correction1 / (sqrtf(variance[i] * s.correction2) + s.epsilon);
    weight[i] = s.shrink * weight[i] - s.rate * direction;
  }
}

/* The bodies above, inlined into functions for one instruction set. */
#define VARIANT(isa, attribute)                                                                                        \
  attribute static void silu_##isa(const float *x, int64_t xs, float *out, int64_t os, int64_t rows, int64_t n) {      \
    silu_body(x, xs, out, os, rows, n);                                                                                \
  }                                                                                                                    \
  attribute static void silu_backward_##isa(const float *x, float *d, int64_t stride, int64_t rows, int64_t n) {       \
    silu_backward_body(x, d, stride, rows, n);                                                                         \
  }                                                                                                                    \
  attribute static void gate_##isa(const float *x, const float *g, int64_t gs, float *out, int64_t rows, int64_t n) {  \
    gate_body(x, g, gs, out, rows, n);                                                                                 \
  }                                                                                                                    \
  attribute static void gate_backward_##isa(const float *x, const float *g, int64_t gs, float *d, float *dg,           \
                                            int64_t rows, int64_t n) {                                                 \
    gate_backward_body(x, g, gs, d, dg, rows, n);                                                                      \
  }                                                                                                                    \
  attribute static double squares_##isa(const float *x, int64_t n) { return squares_body(x, n); }                      \
  attribute static void adamw_##isa(const adamw_step *step, const float *g, float *w, float *m, float *v, int64_t n) { \
    adamw_body(step, g, w, m, v, n);                                                                                   \
  }                                                                                                                    \
  static const elementwise loops_##isa = {silu_##isa,          silu_backward_##isa, gate_##isa,                        \
                                          gate_backward_##isa, squares_##isa,       adamw_##isa};

VARIANT(generic, )
#if defined(__x86_64__)
VARIANT(avx2, __attribute__((target("avx2,fma"))))
#if defined(__clang__)
#define AVX512 "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
#else
#define AVX512 "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512"
#endif
VARIANT(avx512, __attribute__((target(AVX512))))
#endif

const elementwise *elementwise_loops(void) {
#if defined(__x86_64__)
  const char *isa = tigon_cpu_isa();
  if (!strncmp(isa, "avx512", 6) || !strcmp(isa, "amx")) return &loops_avx512;
  if (!strcmp(isa, "avx2")) return &loops_avx2;
#endif
  return &loops_generic;
}
