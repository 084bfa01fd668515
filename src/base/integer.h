/* Arithmetic of sizes; a >= 0, b > 0 where it divides. */
#ifndef TIGON_BASE_INTEGER_H
#define TIGON_BASE_INTEGER_H

#include <stdint.h>

static inline int64_t tigon_smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t tigon_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The least multiple of b that is not below a. */
static inline int64_t tigon_round_up(int64_t a, int64_t b) { return tigon_ceil_div(a, b) * b; }

#endif
