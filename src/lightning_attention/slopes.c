/* Slopes of published models. */
#include <inttypes.h>
#include <math.h>

#include "base/check.h"
#include "tigon/lightning_attention.h"

static double alibi_slope(int64_t head, int64_t heads) {
  int64_t power = 1;
  while (power <= heads / 2) power *= 2;
  if (head < power) return exp2(-8.0 * (double)(head + 1) / (double)power);
  return exp2(-8.0 * (double)(2 * (head - power) + 1) / (double)(2 * power));
}

static double slope(int32_t kind, int64_t layer, int64_t layers, int64_t head, int64_t heads) {
  if (kind == TIGON_LIGHTNING_ATTENTION_LINEAR)
    return 8.0 / (double)heads * (layers ? 1.0 - (double)layer / (double)layers : 1.0) * (double)head;
  const double depth = layers > 1 ? (double)layer / (double)(layers - 1) : 0.0;
  return alibi_slope(head, heads) * (layers ? 1.0 - depth + 1e-5 : 1.0);
}

tigon_status tigon_lightning_attention_slopes(int32_t kind, int64_t layer, int64_t layers, int64_t heads_total,
                                              int64_t head_begin, int64_t heads, float *slopes) {
  tigon_checker check = {.op = "tigon_lightning_attention_slopes"};
  tigon_check_that(&check, kind == TIGON_LIGHTNING_ATTENTION_ALIBI || kind == TIGON_LIGHTNING_ATTENTION_LINEAR, "kind",
                   "expected a tigon_lightning_attention_slope_kind, got %" PRId32, kind);
  tigon_check_that(&check, layers >= 0, "layers", "expected 0 or more, got %" PRId64, layers);
  tigon_check_that(&check, layer >= 0 && layer < (layers ? layers : 1), "layer",
                   "expected a layer of %" PRId64 " (0 where there is no factor), got %" PRId64, layers, layer);
  tigon_check_that(&check, heads_total >= 1 && heads_total <= INT32_MAX, "heads_total",
                   "expected a number of heads from 1 to %" PRId32 ", got %" PRId64, INT32_MAX, heads_total);
  tigon_check_that(&check, head_begin >= 0 && head_begin <= heads_total, "head_begin",
                   "expected from 0 to %" PRId64 ", got %" PRId64, heads_total, head_begin);
  if (check.status != TIGON_OK) return check.status;
  tigon_check_that(&check, heads >= 0 && heads <= heads_total - head_begin, "heads",
                   "expected from 0 to %" PRId64 ", got %" PRId64, heads_total - head_begin, heads);
  tigon_check_that(&check, slopes || heads == 0, "slopes", "expected memory, got NULL");
  if (check.status != TIGON_OK || !slopes) return check.status;
  for (int64_t i = 0; i < heads; i++) slopes[i] = (float)slope(kind, layer, layers, head_begin + i, heads_total);
  return TIGON_OK;
}
