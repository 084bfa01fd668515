/*
 * RMSNorm in float64, written from the formulas, and the plain composition: the same loops in fp32, rounding where
 * include/tigon/rms_norm.h says. All arrays are dense; x and its like (rows, width), weight (width), rstd (rows).
 * Inputs that are NULL are absent, outputs that are NULL are not wanted.
 */
#ifndef TIGON_REFERENCE_RMS_NORM_H
#define TIGON_REFERENCE_RMS_NORM_H

#include <stdint.h>

void reference_rms_norm(int64_t rows, int64_t width, const double *x, const double *residual, const double *weight,
                        double eps, double offset, double *out, double *sum, double *rstd);

/* sum is the normalised input (x, or x + residual); d_sum the upstream gradient of residual_out. */
void reference_rms_norm_backward(int64_t rows, int64_t width, const double *dy, const double *d_sum, const double *sum,
                                 const double *weight, double eps, double offset, double *ds, double *d_weight);

/* The kinds are tigon_kind; xhat_kind is x's for llama and fp32 for gemma. */
void plain_rms_norm(int64_t rows, int64_t width, const double *x, const double *residual, const double *weight,
                    double eps, double offset, int sum_kind, int xhat_kind, int out_kind, double *out, double *sum,
                    double *rstd);

/* ds unrounded in fp32 (dx and d_residual may differ in dtype); d_weight starts from d_weight_in (NULL: zeros). */
void plain_rms_norm_backward(int64_t rows, int64_t width, const double *dy, const double *d_sum, const double *sum,
                             const double *weight, const double *rstd, double offset, int xhat_kind, int d_weight_kind,
                             const double *d_weight_in, double *ds, double *d_weight);

#endif
