/*
 * AdamW (Loshchilov and Hutter, 2019) over the whole parameter block, with the gradient clipped by its global norm.
 * Norms and the embedding have no weight decay.
 */
#ifndef APPS_ADAMW_H
#define APPS_ADAMW_H

#include "model.h"

typedef struct adamw_settings {
  float beta1, beta2, epsilon, weight_decay;
  float clip; /* largest global norm of the gradient */
} adamw_settings;

/* sqrt of the sum of squares of all gradients. */
double adamw_gradient_norm(const model *m);

/* One update; step counts from 1. */
void adamw_update(model *m, const adamw_settings *settings, double rate, double gradient_norm, int64_t step);

#endif
