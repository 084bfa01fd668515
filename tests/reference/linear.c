#include "tests/reference/linear.h"

#include "base/dtype.h"

void reference_linear(int64_t tokens, int64_t n, int64_t d, const double *x, const double *weight, const double *bias,
                      double *y) {
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t i = 0; i < n; i++) {
      double sum = bias ? bias[i] : 0;
      for (int64_t k = 0; k < d; k++) sum += x[t * d + k] * weight[i * d + k];
      y[t * n + i] = sum;
    }
}

void reference_linear_backward(int64_t tokens, int64_t n, int64_t d, const double *dy, const double *x,
                               const double *weight, double *dx, double *dweight, double *dbias) {
  for (int64_t t = 0; dx && t < tokens; t++)
    for (int64_t k = 0; k < d; k++) {
      double sum = 0;
      for (int64_t i = 0; i < n; i++) sum += dy[t * n + i] * weight[i * d + k];
      dx[t * d + k] = sum;
    }
  for (int64_t i = 0; i < n; i++) {
    for (int64_t k = 0; dweight && k < d; k++) {
      double sum = 0;
      for (int64_t t = 0; t < tokens; t++) sum += dy[t * n + i] * x[t * d + k];
      dweight[i * d + k] = sum;
    }
    if (!dbias) continue;
    dbias[i] = 0;
    for (int64_t t = 0; t < tokens; t++) dbias[i] += dy[t * n + i];
  }
}

void plain_linear(int64_t tokens, int64_t n, int64_t d, const double *x, const double *weight, const double *bias,
                  int y_kind, double *y) {
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t i = 0; i < n; i++) {
      float sum = 0;
      for (int64_t k = 0; k < d; k++) sum += (float)x[t * d + k] * (float)weight[i * d + k];
      y[t * n + i] = tigon_round_to((tigon_kind)y_kind, bias ? sum + (float)bias[i] : sum);
    }
}

void plain_linear_backward(int64_t tokens, int64_t n, int64_t d, const double *dy, const double *x,
                           const double *weight, int dx_kind, int dweight_kind, int dbias_kind, double *dx,
                           double *dweight, double *dbias) {
  for (int64_t t = 0; dx && t < tokens; t++)
    for (int64_t k = 0; k < d; k++) {
      float sum = 0;
      for (int64_t i = 0; i < n; i++) sum += (float)dy[t * n + i] * (float)weight[i * d + k];
      dx[t * d + k] = tigon_round_to((tigon_kind)dx_kind, (float)dx[t * d + k] + sum);
    }
  for (int64_t i = 0; i < n; i++) {
    for (int64_t k = 0; dweight && k < d; k++) {
      float sum = 0;
      for (int64_t t = 0; t < tokens; t++) sum += (float)dy[t * n + i] * (float)x[t * d + k];
      dweight[i * d + k] = tigon_round_to((tigon_kind)dweight_kind, (float)dweight[i * d + k] + sum);
    }
    float sum = 0;
    for (int64_t t = 0; dbias && t < tokens; t++) sum += (float)dy[t * n + i];
    if (dbias) dbias[i] = tigon_round_to((tigon_kind)dbias_kind, (float)dbias[i] + sum);
  }
}
