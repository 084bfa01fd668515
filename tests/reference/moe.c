#include "tests/reference/moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

#define REAL           double
#define NAME(name)     name##_double
#define EXP            exp
#define ROUND(kind, v) ((void)(kind), (v))
#include "tests/reference/moe.inc"
#undef REAL
#undef NAME
#undef EXP
#undef ROUND

#define REAL           float
#define NAME(name)     name##_float
#define EXP            expf
#define ROUND(kind, v) tigon_round_to((tigon_kind)(kind), v)
#include "tests/reference/moe.inc"

void reference_moe(int64_t tokens, int64_t choices, int64_t width, int64_t inner, int64_t experts, const double *x,
                   const int64_t *ids, const double *weights, const double *gate, const double *up, const double *down,
                   double *out) {
  const reference_moe_kinds none = {0};
  const experts_input in = {tokens, choices, width, inner, experts, x, ids, weights, gate, up, down, &none};
  forward_double(&in, out);
}

void reference_moe_plain(int64_t tokens, int64_t choices, int64_t width, int64_t inner, int64_t experts,
                         const double *x, const int64_t *ids, const double *weights, const double *gate,
                         const double *up, const double *down, const reference_moe_kinds *kinds, double *out) {
  const experts_input in = {tokens, choices, width, inner, experts, x, ids, weights, gate, up, down, kinds};
  forward_float(&in, out);
}

void reference_moe_backward(int64_t tokens, int64_t choices, int64_t width, int64_t inner, int64_t experts,
                            const double *dout, const double *x, const int64_t *ids, const double *weights,
                            const double *gate, const double *up, const double *down, int accumulate, double *dx,
                            double *d_weights, double *d_gate, double *d_up, double *d_down) {
  const reference_moe_kinds none = {0};
  const experts_input in = {tokens, choices, width, inner, experts, x, ids, weights, gate, up, down, &none};
  backward_double(&in, dout, accumulate, dx, d_weights, d_gate, d_up, d_down);
}

void reference_moe_backward_plain(int64_t tokens, int64_t choices, int64_t width, int64_t inner, int64_t experts,
                                  const double *dout, const double *x, const int64_t *ids, const double *weights,
                                  const double *gate, const double *up, const double *down, int accumulate,
                                  const reference_moe_kinds *kinds, double *dx, double *d_weights, double *d_gate,
                                  double *d_up, double *d_down) {
  const experts_input in = {tokens, choices, width, inner, experts, x, ids, weights, gate, up, down, kinds};
  backward_float(&in, dout, accumulate, dx, d_weights, d_gate, d_up, d_down);
}

void reference_moe_route(int64_t tokens, int64_t choices, int64_t experts, int sigmoid, int renormalize,
                         const double *logits, int64_t *ids, double *weights, int64_t *counts, double *loss) {
  route_double(tokens, choices, experts, sigmoid, renormalize, logits, ids, weights, counts, loss);
}

void reference_moe_route_plain(int64_t tokens, int64_t choices, int64_t experts, int sigmoid, int renormalize,
                               const double *logits, int64_t *ids, double *weights, int64_t *counts, double *loss) {
  route_float(tokens, choices, experts, sigmoid, renormalize, logits, ids, weights, counts, loss);
}

void reference_moe_route_backward(int64_t tokens, int64_t choices, int64_t experts, int sigmoid, int renormalize,
                                  const double *logits, const int64_t *ids, const double *d_weights, double d_loss,
                                  double *d_logits) {
  route_backward_double(tokens, choices, experts, sigmoid, renormalize, logits, ids, d_weights, d_loss, 0, d_logits);
}

void reference_moe_route_backward_plain(int64_t tokens, int64_t choices, int64_t experts, int sigmoid, int renormalize,
                                        const double *logits, const int64_t *ids, const double *d_weights,
                                        double d_loss, int d_kind, double *d_logits) {
  route_backward_float(tokens, choices, experts, sigmoid, renormalize, logits, ids, d_weights, d_loss, d_kind,
                       d_logits);
}
