#include "tests/reference/linear_cross_entropy.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#define NAME(name) reference_##name
#define EXP        exp
#define LOG        log
#define TANH       tanh
typedef double reference_real;
#define real reference_real
#include "tests/reference/linear_cross_entropy.inc"
#undef real
#undef NAME
#undef EXP
#undef LOG
#undef TANH

#define NAME(name) plain_##name
#define EXP        expf
#define LOG        logf
#define TANH       tanhf
typedef float plain_real;
#define real plain_real
#include "tests/reference/linear_cross_entropy.inc"

void reference_linear_cross_entropy_logits(const reference_lce_problem *p, int64_t token, double *z) {
  double *t = malloc(((size_t)p->classes + 1) * sizeof *t);
  if (!t) abort();
  reference_logits(p, token, z, t);
  free(t);
}
