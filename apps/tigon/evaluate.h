/* Loss of the model on the validation split. */
#ifndef APPS_EVALUATE_H
#define APPS_EVALUATE_H

#include "data.h"
#include "model.h"

/*
 * Mean negative log-likelihood in nats of every byte of the validation split. The model reads windows of its sequence
 * length that overlap by a quarter: the first quarter of a window is context alone, so every byte is scored once, with
 * at least that much context (which may lie before the split).
 */
bool evaluate(model *m, const text_data *data, double *nats, failure *failed);

#endif
