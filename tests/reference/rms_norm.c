#include "tests/reference/rms_norm.h"

#include <math.h>
#include <stddef.h>

#include "base/dtype.h"

void reference_rms_norm(int64_t rows, int64_t width, const double *x, const double *residual, const double *weight,
                        double eps, double offset, double *out, double *sum, double *rstd) {
  for (int64_t r = 0; r < rows; r++) {
    double squares = 0;
    for (int64_t j = 0; j < width; j++) {
      const double s = x[r * width + j] + (residual ? residual[r * width + j] : 0);
      squares += s * s;
    }
    const double scale = 1 / sqrt(squares / (double)width + eps);
    if (rstd) rstd[r] = scale;
    for (int64_t j = 0; j < width; j++) {
      const double s = x[r * width + j] + (residual ? residual[r * width + j] : 0);
      if (sum) sum[r * width + j] = s;
      if (out) out[r * width + j] = s * scale * (weight ? offset + weight[j] : 1);
    }
  }
}

void reference_rms_norm_backward(int64_t rows, int64_t width, const double *dy, const double *d_sum, const double *sum,
                                 const double *weight, double eps, double offset, double *ds, double *d_weight) {
  for (int64_t j = 0; d_weight && j < width; j++) d_weight[j] = 0;
  for (int64_t r = 0; r < rows; r++) {
    const double *s = sum + r * width;
    double squares = 0, dot = 0;
    for (int64_t j = 0; j < width; j++) squares += s[j] * s[j];
    const double rstd = 1 / sqrt(squares / (double)width + eps);
    for (int64_t j = 0; dy && j < width; j++) {
      dot += dy[r * width + j] * (weight ? offset + weight[j] : 1) * s[j];
      if (d_weight) d_weight[j] += dy[r * width + j] * s[j] * rstd;
    }
    for (int64_t j = 0; ds && j < width; j++) {
      const double m = dy ? dy[r * width + j] * (weight ? offset + weight[j] : 1) : 0;
      ds[r * width + j] = dy ? rstd * (m - s[j] * rstd * rstd * dot / (double)width) : 0;
      if (d_sum) ds[r * width + j] += d_sum[r * width + j];
    }
  }
}

void plain_rms_norm(int64_t rows, int64_t width, const double *x, const double *residual, const double *weight,
                    double eps, double offset, int sum_kind, int xhat_kind, int out_kind, double *out, double *sum,
                    double *rstd) {
  for (int64_t r = 0; r < rows; r++) {
    float squares = 0;
    for (int64_t j = 0; j < width; j++) {
      float s = (float)x[r * width + j];
      if (residual) s = tigon_round_to((tigon_kind)sum_kind, s + (float)residual[r * width + j]);
      sum[r * width + j] = s;
      squares += s * s;
    }
    const float scale = 1 / sqrtf(squares / (float)width + (float)eps);
    rstd[r] = scale;
    for (int64_t j = 0; j < width; j++) {
      const float xhat = tigon_round_to((tigon_kind)xhat_kind, (float)sum[r * width + j] * scale);
      const float factor = weight ? (float)offset + (float)weight[j] : 1;
      out[r * width + j] = tigon_round_to((tigon_kind)out_kind, xhat * factor);
    }
  }
}

static void plain_row(int64_t width, const double *dy, const double *d_sum, const double *sum, const double *weight,
                      float rstd, float offset, double *ds) {
  float dot = 0;
  for (int64_t j = 0; dy && j < width; j++)
    dot += (float)dy[j] * (weight ? offset + (float)weight[j] : 1) * ((float)sum[j] * rstd);
  const float mean = dot / (float)width;
  for (int64_t j = 0; j < width; j++) {
    float d = 0;
    if (dy) d = rstd * ((float)dy[j] * (weight ? offset + (float)weight[j] : 1) - (float)sum[j] * rstd * mean);
    ds[j] = d_sum ? d + (float)d_sum[j] : d;
  }
}

void plain_rms_norm_backward(int64_t rows, int64_t width, const double *dy, const double *d_sum, const double *sum,
                             const double *weight, const double *rstd, double offset, int xhat_kind, int d_weight_kind,
                             const double *d_weight_in, double *ds, double *d_weight) {
  for (int64_t r = 0; r < rows; r++)
    plain_row(width, dy ? dy + r * width : NULL, d_sum ? d_sum + r * width : NULL, sum + r * width, weight,
              (float)rstd[r], (float)offset, ds + r * width);
  for (int64_t j = 0; j < width; j++) {
    float total = 0;
    for (int64_t r = 0; dy && r < rows; r++)
      total +=
          (float)dy[r * width + j] * tigon_round_to((tigon_kind)xhat_kind, (float)sum[r * width + j] * (float)rstd[r]);
    if (d_weight_in) total += (float)d_weight_in[j];
    d_weight[j] = tigon_round_to((tigon_kind)d_weight_kind, total);
  }
}
