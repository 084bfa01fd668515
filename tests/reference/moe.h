/*
 * The naive mixture of experts: tigon/moe.h written as loops, in float64 (the oracle) and in fp32 with the roundings
 * that the header names (the plain composition). Arrays are dense and row-major; ids outside [0, E) are skipped, and so
 * are routes past the row limit.
 */
#ifndef TIGON_REFERENCE_MOE_H
#define TIGON_REFERENCE_MOE_H

#include <stdint.h>

typedef struct reference_moe_input {
  int64_t tokens, choices, width, inner, experts;
  int64_t weights_on_input, row_limit; /* 0: no limit */
  const double *x;                     /* (T, D) */
  const int64_t *ids;                  /* (T, k) */
  const double *weights;               /* (T, k) */
  const double *gate, *up;             /* (E, I, D) */
  const double *down;                  /* (E, D, I) */
} reference_moe_input;

/* kinds are tigon_kind values; float64 rounds nowhere and has none. */
typedef struct reference_moe_kinds {
  int x, out, dx, d_weights, d_gate, d_up, d_down;
} reference_moe_kinds;

/* out (T, D) */
void reference_moe(const reference_moe_input *in, double *out);
void reference_moe_plain(const reference_moe_input *in, const reference_moe_kinds *kinds, double *out);

typedef struct reference_moe_gradients {
  double *dx, *d_weights, *d_gate, *d_up, *d_down;
} reference_moe_gradients;

/* accumulate: d_gate, d_up and d_down are added to what the arrays hold. */
void reference_moe_backward(const reference_moe_input *in, const double *dout, int accumulate,
                            const reference_moe_gradients *to);
void reference_moe_backward_plain(const reference_moe_input *in, const double *dout, int accumulate,
                                  const reference_moe_kinds *kinds, const reference_moe_gradients *to);

typedef struct reference_moe_route_input {
  int64_t tokens, choices, experts;
  int64_t sigmoid, renormalize;
  int64_t n_group, topk_group, group_top; /* 0: the header's defaults */
  double routed_scale;                    /* 0: 1 */
  const double *logits;                   /* (T, E) */
  const double *bias;                     /* (E), or NULL */
} reference_moe_route_input;

/* ids (T, k) */
void reference_moe_route_select(const reference_moe_route_input *in, int64_t *ids);
/* One token's biased scores (E), NaN where an expert may not be chosen, and the scores of its groups (n_group > 1). */
void reference_moe_route_scores(const reference_moe_route_input *in, int64_t token, double *scores);
void reference_moe_route_groups(const reference_moe_route_input *in, int64_t token, double *groups);

/* What follows from the ids: weights (T, k), counts (E), loss (1), z_loss (1). */
void reference_moe_route(const reference_moe_route_input *in, const int64_t *ids, double *weights, int64_t *counts,
                         double *loss, double *z_loss);
void reference_moe_route_plain(const reference_moe_route_input *in, const int64_t *ids, double *weights,
                               int64_t *counts, double *loss, double *z_loss);

/* d_logits (T, E); d_kind rounds it in the plain version. */
void reference_moe_route_backward(const reference_moe_route_input *in, const int64_t *ids, const double *d_weights,
                                  double d_loss, double d_z_loss, double *d_logits);
void reference_moe_route_backward_plain(const reference_moe_route_input *in, const int64_t *ids,
                                        const double *d_weights, double d_loss, double d_z_loss, int d_kind,
                                        double *d_logits);

#endif
