/*
 * Linear cross entropy in float64, written from the formulas of include/tigon/linear_cross_entropy.h, and the plain
 * composition: the same loops in fp32, rounding where the header says. All arrays are dense. Inputs that are NULL are
 * absent, outputs that are NULL are not wanted. Targets that are ignore_index or no class leave their token out.
 */
#ifndef TIGON_REFERENCE_LINEAR_CROSS_ENTROPY_H
#define TIGON_REFERENCE_LINEAR_CROSS_ENTROPY_H

#include <stdint.h>

/* All columns: no shard. Rows of weight from `classes` on are padding. */
typedef struct reference_lce_problem {
  int64_t tokens, width, vocabulary, classes;
  int64_t ignore_index;
  const double *x, *weight, *bias; /* (tokens, width), (vocabulary, width), (vocabulary) */
  const int64_t *target;           /* (tokens) */
  const double *class_weight;      /* (classes) */
  const double *token_weight;      /* (tokens) */
  double inverse_temperature, softcap, z_loss, label_smoothing;
  int dz_kind; /* a tigon_kind: what the plain composition rounds the gradients of logits to */
} reference_lce_problem;

/* (tokens) each; argmax is -1 where there is none. */
typedef struct reference_lce_outputs {
  double *loss, *nll, *lse, *entropy;
  int64_t *argmax;
} reference_lce_outputs;

typedef struct reference_lce_gradients {
  const double *d_loss, *d_lse, *d_entropy; /* (tokens) */
  double *dx, *dweight, *dbias;
  double *walks; /* (3): of each of these, the root of the largest finite sum of an element's squared terms */
} reference_lce_gradients;

void reference_linear_cross_entropy(const reference_lce_problem *p, const reference_lce_outputs *o);
void reference_linear_cross_entropy_backward(const reference_lce_problem *p, const reference_lce_gradients *g);

/* z of one token, (classes) */
void reference_linear_cross_entropy_logits(const reference_lce_problem *p, int64_t token, double *z);

void plain_linear_cross_entropy(const reference_lce_problem *p, const reference_lce_outputs *o);
/* Gradients unrounded in fp32: the caller rounds to each output's dtype. */
void plain_linear_cross_entropy_backward(const reference_lce_problem *p, const reference_lce_gradients *g);

#endif
