#include "tests/reference/linear_cross_entropy.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/dtype.h"

#define NAME(name)     reference_##name
#define EXP            exp
#define LOG            log
#define TANH           tanh
#define ROUND(kind, v) ((void)(kind), (v))
typedef double reference_real;
#define real reference_real
#include "tests/reference/linear_cross_entropy.inc"
#undef real
#undef NAME
#undef EXP
#undef LOG
#undef TANH
#undef ROUND

#define NAME(name)     plain_##name
#define EXP            expf
#define LOG            logf
#define TANH           tanhf
#define ROUND(kind, v) tigon_round_to((tigon_kind)(kind), v)
typedef float plain_real;
#define real plain_real
#include "tests/reference/linear_cross_entropy.inc"

void reference_linear_cross_entropy_logits(const reference_lce_problem *p, int64_t token, double *z) {
  double *t = malloc(((size_t)p->classes + 1) * sizeof *t);
  if (!t) abort();
  reference_logits(p, token, z, t);
  free(t);
}
