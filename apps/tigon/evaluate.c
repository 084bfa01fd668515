#include "evaluate.h"

#include <stdlib.h>

#include "forward.h"

enum { IGNORED = -100 };

/* Row `row` of the batch: the window whose first scored token is `at`. Beyond [0, end) the row is padded. */
static bool fill_window(model *m, dataset *data, int64_t row, int64_t at, int64_t context, int64_t end, int32_t *window,
                        failure *failed) {
  int32_t *tokens = m->tokens + row * m->length, *targets = m->targets + row * m->length;
  const int64_t first = at - context - 1; /* whose target is the first of the row */
  const int64_t from = first < 0 ? 0 : first, to = first + m->length + 1 < end ? first + m->length + 1 : end;
  if (from < to && !dataset_read(data, from, to - from, window + (from - first), failed)) return false;
  for (int64_t i = 0; i < m->length; i++) {
    const int64_t target = first + 1 + i;
    const bool inside = target > 0 && target < end;
    tokens[i] = inside ? window[i] : 0;
    targets[i] = inside && i >= context ? window[i + 1] : IGNORED;
  }
  return true;
}

static bool score(model *m, dataset *data, int64_t end, int32_t *window, double *nats, failure *failed) {
  const int64_t context = m->length / 4, fresh = m->length - context;
  double sum = 0;
  for (int64_t at = data->train_size; at < end; at += m->batch * fresh) {
    for (int64_t row = 0; row < m->batch; row++)
      if (!fill_window(m, data, row, at + row * fresh, context, end, window, failed)) return false;
    forward(m);
    if (m->failed_op) return fail_with(failed, "%s", tigon_last_error());
    for (int64_t i = 0; i < m->batch * m->length; i++) sum += (double)m->loss[i]; /* 0 where ignored */
  }
  *nats = sum / (double)(end - data->train_size);
  return true;
}

bool evaluate(model *m, dataset *data, int64_t end, double *nats, failure *failed) {
  int32_t *window = malloc((size_t)(m->length + 1) * sizeof *window);
  if (!window) return fail_with(failed, "no memory for a window of %lld tokens", (long long)m->length);
  const bool ok = score(m, data, end, window, nats, failed);
  free(window);
  return ok;
}
