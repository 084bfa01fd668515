/* The model's forward and backward pass over the batch in m->tokens and m->targets. See model.h for the formulas. */
#ifndef APPS_FORWARD_H
#define APPS_FORWARD_H

#include "model.h"

/* Fills m->loss (B T), or m->next_logits when decoding. On failure m->failed_op names the operation. */
void forward(model *m);

/* Gradients of sum(m->loss) * m->d_loss + sum over layers of balance loss * m->d_balance, into m->gradients. */
void backward(model *m);

/* Size of a layer's block that tigon_moe keeps for backward. */
uint64_t forward_saved_bytes(model *m);

#endif
