#include "reference/lightning_attention.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

enum { SIZE_B, SIZE_TOKENS, SIZE_H, SIZE_HV, SIZE_K, SIZE_V, SIZE_N, SIZE_DECAY };

/* Running maximum of cu_seqlens up to n, clamped to [0, T]. */
static int64_t bound(const lightning_inputs *in, int64_t n) {
  int64_t most = 0;
  for (int64_t i = 0; i <= n; i++)
    if (in->cu_seqlens[i] > most) most = in->cu_seqlens[i];
  return most < in->sizes[SIZE_TOKENS] ? most : in->sizes[SIZE_TOKENS];
}

static double exact(double value, int kind) {
  (void)kind;
  return value;
}

#define real               double
#define NAME(name)         name##_double
#define ROUND(value, kind) exact(value, kind)
#include "reference/lightning_attention.inc"

#define real               float
#define NAME(name)         name##_float
#define ROUND(value, kind) (double)tigon_round_to((tigon_kind)(kind), value)
#include "reference/lightning_attention.inc"

void lightning_oracle(const lightning_inputs *in, double *out, double *final_state) {
  forward_double(in, out, final_state, 0);
}
void lightning_plain(const lightning_inputs *in, double *out, double *final_state, int out_kind) {
  forward_float(in, out, final_state, out_kind);
}
void lightning_backward_oracle(const lightning_inputs *in, const lightning_gradients *grad) {
  const int kinds[3] = {0};
  backward_double(in, grad, kinds);
}
void lightning_backward_plain(const lightning_inputs *in, const lightning_gradients *grad, const int *kinds) {
  backward_float(in, grad, kinds);
}
