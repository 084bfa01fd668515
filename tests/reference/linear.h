/*
 * Projection in float64, and the plain composition in fp32 with outputs rounded to a tigon_kind. All arrays are dense:
 * x (tokens, d), weight (n, d), bias (n), y and dy (tokens, n). Inputs that are NULL are absent; outputs that are NULL
 * are not wanted.
 */
#ifndef TIGON_REFERENCE_LINEAR_H
#define TIGON_REFERENCE_LINEAR_H

#include <stdint.h>

void reference_linear(int64_t tokens, int64_t n, int64_t d, const double *x, const double *weight, const double *bias,
                      double *y);
void reference_linear_backward(int64_t tokens, int64_t n, int64_t d, const double *dy, const double *x,
                               const double *weight, double *dx, double *dweight, double *dbias);

void plain_linear(int64_t tokens, int64_t n, int64_t d, const double *x, const double *weight, const double *bias,
                  int y_kind, double *y);

/* The outputs start from the values that they hold (zeros unless the caller accumulates). */
void plain_linear_backward(int64_t tokens, int64_t n, int64_t d, const double *dy, const double *x,
                           const double *weight, int dx_kind, int dweight_kind, int dbias_kind, double *dx,
                           double *dweight, double *dbias);

#endif
