#include "evaluate.h"

#include "forward.h"

enum { IGNORED = -100 };

/* Row `row` of the batch: the window whose first scored byte is `at`. Beyond the text the row is padded. */
static void fill_window(model *m, const text_data *data, int64_t row, int64_t at, int64_t context) {
  int32_t *tokens = m->tokens + row * m->length, *targets = m->targets + row * m->length;
  for (int64_t i = 0; i < m->length; i++) {
    const int64_t target = at - context + i;
    const bool inside = target > 0 && target < data->size;
    tokens[i] = inside ? data->bytes[target - 1] : 0;
    targets[i] = inside && i >= context ? data->bytes[target] : IGNORED;
  }
}

bool evaluate(model *m, const text_data *data, double *nats, failure *failed) {
  const int64_t context = m->length / 4, fresh = m->length - context;
  double sum = 0;
  for (int64_t at = data->train_size; at < data->size; at += m->batch * fresh) {
    for (int64_t row = 0; row < m->batch; row++) fill_window(m, data, row, at + row * fresh, context);
    forward(m);
    if (m->failed_op) return fail_with(failed, "%s", tigon_last_error());
    for (int64_t i = 0; i < m->batch * m->length; i++) sum += (double)m->loss[i]; /* 0 where ignored */
  }
  *nats = sum / (double)(data->size - data->train_size);
  return true;
}
