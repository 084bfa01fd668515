/* Loss of the model on the validation split. */
#ifndef APPS_EVALUATE_H
#define APPS_EVALUATE_H

#include "data.h"
#include "model.h"

/*
 * Mean negative log-likelihood in nats of each token of the validation split up to `end`. The model reads windows of
 * its sequence length that overlap by a quarter: the first quarter of a window is context alone, so every token is
 * scored once, with at least that much context (which may lie before the split).
 */
bool evaluate(model *m, dataset *data, int64_t end, double *nats, failure *failed);

#endif
