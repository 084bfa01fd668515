/*
 * Linear cross entropy in float64, written from the formulas of include/tigon/linear_cross_entropy.h, and the plain
 * composition: the same loops in fp32, rounding where the header says. All arrays are dense: x (tokens, width), weight
 * (vocabulary, width), bias (vocabulary), the others (tokens). Inputs that are NULL are absent, outputs that are NULL are
 * not wanted. Targets that are ignore_index or no class leave their token out.
 */
#ifndef TIGON_REFERENCE_LINEAR_CROSS_ENTROPY_H
#define TIGON_REFERENCE_LINEAR_CROSS_ENTROPY_H

#include <stdint.h>

void reference_linear_cross_entropy(int64_t tokens, int64_t width, int64_t vocabulary, const double *x,
                                    const double *weight, const double *bias, const int64_t *target,
                                    int64_t ignore_index, double inverse_temperature, double z_loss, double *loss,
                                    double *nll, double *lse, double *entropy);

void reference_linear_cross_entropy_backward(int64_t tokens, int64_t width, int64_t vocabulary, const double *x,
                                             const double *weight, const double *bias, const int64_t *target,
                                             int64_t ignore_index, double inverse_temperature, double z_loss,
                                             const double *d_loss, const double *d_lse, const double *d_entropy,
                                             double *dx, double *dweight, double *dbias);

void plain_linear_cross_entropy(int64_t tokens, int64_t width, int64_t vocabulary, const double *x,
                                const double *weight, const double *bias, const int64_t *target, int64_t ignore_index,
                                double inverse_temperature, double z_loss, double *loss, double *nll, double *lse,
                                double *entropy);

/* Gradients unrounded in fp32: the caller rounds to each output's dtype. */
void plain_linear_cross_entropy_backward(int64_t tokens, int64_t width, int64_t vocabulary, const double *x,
                                         const double *weight, const double *bias, const int64_t *target,
                                         int64_t ignore_index, double inverse_temperature, double z_loss,
                                         const double *d_loss, const double *d_lse, const double *d_entropy, double *dx,
                                         double *dweight, double *dbias);

#endif
