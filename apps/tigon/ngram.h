/*
 * The text's own n-gram models, as a yardstick: fitted on the training split, interpolated with Witten-Bell smoothing,
 *
 *     P_n(c | h) = (count(h c) + kinds(h) P_{n-1}(c | shorter h)) / (count(h) + kinds(h)),   P_0(c) = 1 / 256
 *
 * where kinds(h) is the number of different bytes seen after h (Witten and Bell, 1991).
 */
#ifndef APPS_NGRAM_H
#define APPS_NGRAM_H

#include <stdint.h>

#include "failure.h"

enum { NGRAM_ORDERS = 4, NGRAM_MOST = 1 << 24 };

/* Fitted on bytes [0, begin), at most NGRAM_MOST of them: mean negative log-likelihood in nats of bytes [begin, end)
 * for n = 1..4, that is 0 to 3 bytes of context, which may lie before begin. */
bool ngram_nats(const uint8_t *bytes, int64_t begin, int64_t end, double nats[NGRAM_ORDERS], failure *failed);

#endif
