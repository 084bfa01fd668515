#include "tests/reference/linear_cross_entropy.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#define NAME(name) reference_##name
#define EXP        exp
#define LOG        log
typedef double reference_real;
#define real reference_real
#include "tests/reference/linear_cross_entropy.inc"
#undef real
#undef NAME
#undef EXP
#undef LOG

#define NAME(name) plain_##name
#define EXP        expf
#define LOG        logf
typedef float plain_real;
#define real plain_real
#include "tests/reference/linear_cross_entropy.inc"
