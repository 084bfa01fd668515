/*
 * The naive mixture of experts: tigon/moe.h written as loops, in float64 (the oracle) and in fp32 with the roundings that
 * the header names (the plain composition). Arrays are dense and row-major; ids outside [0, E) are skipped.
 */
#ifndef TIGON_REFERENCE_MOE_H
#define TIGON_REFERENCE_MOE_H

#include <stdint.h>

/* kinds are tigon_kind values; float64 rounds nowhere and has none. */
typedef struct reference_moe_kinds {
  int x, out, dx, d_weights, d_gate, d_up, d_down;
} reference_moe_kinds;

/* out (T, D) */
void reference_moe(int64_t tokens, int64_t choices, int64_t width, int64_t inner, int64_t experts, const double *x,
                   const int64_t *ids, const double *weights, const double *gate, const double *up, const double *down,
                   double *out);
void reference_moe_plain(int64_t tokens, int64_t choices, int64_t width, int64_t inner, int64_t experts,
                         const double *x, const int64_t *ids, const double *weights, const double *gate,
                         const double *up, const double *down, const reference_moe_kinds *kinds, double *out);

/* All gradients. accumulate: d_gate, d_up and d_down are added to what the arrays hold. */
void reference_moe_backward(int64_t tokens, int64_t choices, int64_t width, int64_t inner, int64_t experts,
                            const double *dout, const double *x, const int64_t *ids, const double *weights,
                            const double *gate, const double *up, const double *down, int accumulate, double *dx,
                            double *d_weights, double *d_gate, double *d_up, double *d_down);
void reference_moe_backward_plain(int64_t tokens, int64_t choices, int64_t width, int64_t inner, int64_t experts,
                                  const double *dout, const double *x, const int64_t *ids, const double *weights,
                                  const double *gate, const double *up, const double *down, int accumulate,
                                  const reference_moe_kinds *kinds, double *dx, double *d_weights, double *d_gate,
                                  double *d_up, double *d_down);

/* ids, weights (T, k), counts (E), loss (1) */
void reference_moe_route(int64_t tokens, int64_t choices, int64_t experts, int sigmoid, int renormalize,
                         const double *logits, int64_t *ids, double *weights, int64_t *counts, double *loss);
void reference_moe_route_plain(int64_t tokens, int64_t choices, int64_t experts, int sigmoid, int renormalize,
                               const double *logits, int64_t *ids, double *weights, int64_t *counts, double *loss);

/* d_logits (T, E); d_kind rounds it in the plain version. */
void reference_moe_route_backward(int64_t tokens, int64_t choices, int64_t experts, int sigmoid, int renormalize,
                                  const double *logits, const int64_t *ids, const double *d_weights, double d_loss,
                                  double *d_logits);
void reference_moe_route_backward_plain(int64_t tokens, int64_t choices, int64_t experts, int sigmoid, int renormalize,
                                        const double *logits, const int64_t *ids, const double *d_weights,
                                        double d_loss, int d_kind, double *d_logits);

#endif
