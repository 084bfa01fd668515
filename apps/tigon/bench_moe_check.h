/* Samples of moe's results compared with the plain formula in float64. */
#ifndef APPS_BENCH_MOE_CHECK_H
#define APPS_BENCH_MOE_CHECK_H

#include <stdbool.h>
#include <tigon/tigon.h>

enum { MOE_CHOICES = 2 };

typedef struct moe_rows {
  tigon_moe_args forward;
  tigon_moe_backward_args backward;
  const char *dtype;
  int64_t tokens, width, inner, experts;
} moe_rows;

/* context: a moe_rows */
bool check_moe_forward(void *context);
bool check_moe_backward(void *context);

#endif
