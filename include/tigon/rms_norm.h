/*
 * Root-mean-square normalisation, with an optional fused residual add (Zhang and Sennrich, 2019).
 *
 *     s    = x + residual          rounded to residual_out's dtype; without a residual s = x
 *     rstd = 1 / sqrt(mean_j s_j^2 + eps)          statistics in fp32
 *     xhat = s * rstd
 *     out  = xhat * (offset + weight)
 *
 * Runs on the CPU and on CUDA devices.
 *
 * Rows are the leading dimensions: x is (M, H), or (T, N, H) for per-head views; H >= 1 is the last, contiguous
 * dimension. The other tensors of x's shape have its shape, each with its own strides and dtype.
 *
 * Rounding points. TIGON_CASTING_LLAMA: s in fp32, xhat is rounded to x's dtype, multiplied by (offset + weight) in
 * fp32 and rounded to out's dtype. TIGON_CASTING_GEMMA: everything in fp32, one rounding to out's dtype. offset +
 * weight is always formed in fp32.
 *
 * dtypes: x, residual, weight, out, residual_out, dy, d_residual_out, dx, d_residual, d_weight each float32, float16 or
 * bfloat16, in any mix; rstd float32.
 * NaN or Inf in a row stays in that row (and, in backward, in d_weight). M = 0 is allowed (d_weight becomes 0).
 */
#ifndef TIGON_RMS_NORM_H
#define TIGON_RMS_NORM_H

#include "tigon/base.h"
#include "tigon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tigon_casting {
  TIGON_CASTING_LLAMA = 0, /* Hugging Face LlamaRMSNorm */
  TIGON_CASTING_GEMMA = 1  /* Hugging Face GemmaRMSNorm, torch.nn.RMSNorm in fp32 */
} tigon_casting;

typedef struct tigon_rms_norm_args {
  uint32_t size;
  int32_t casting;          /* tigon_casting */
  const DLTensor *x;        /* (M, H) or (T, N, H) */
  const DLTensor *residual; /* NULL, or x's shape */
  const DLTensor *weight;   /* NULL (out = xhat), or (H) */
  DLTensor *out;            /* x's shape; may be x itself (same data, dtype and strides) */
  DLTensor *residual_out;   /* s, x's shape; required with residual, NULL without; may be residual itself */
  DLTensor *rstd;           /* NULL, or (M) or (T, N) float32; backward needs it */
  float eps;                /* 0 = 1e-6 */
  float offset;             /* 0 for Llama and Qwen, 1 for Gemma */
} tigon_rms_norm_args;

TIGON_API tigon_status tigon_rms_norm(const tigon_exec *exec, const tigon_rms_norm_args *args);
TIGON_API tigon_status tigon_rms_norm_workspace(const tigon_exec *exec, const tigon_rms_norm_args *args,
                                                uint64_t *bytes);

/*
 * Gradients. With m = dy * (offset + weight):
 *
 *     ds_j       = rstd * (m_j - xhat_j * mean_i(m_i * xhat_i)) + d_residual_out_j       xhat = s * rstd in fp32
 *     d_weight_j = sum over rows of dy_j * xhat_j                LLAMA: xhat_j as forward rounded it to x's dtype
 *     dx = d_residual = ds, each rounded once to its own dtype
 *
 * d_weight is summed in fp32 in a fixed order and rounded once, or is added into the caller's values.
 */
typedef struct tigon_rms_norm_backward_args {
  uint32_t size;
  int32_t casting;                /* as in forward */
  const DLTensor *dy;             /* gradient of out; NULL = 0 */
  const DLTensor *d_residual_out; /* gradient of residual_out; NULL = 0 */
  const DLTensor *x;              /* x, or residual_out (s) where forward had a residual */
  const DLTensor *weight;         /* as in forward */
  const DLTensor *rstd;           /* from forward */
  DLTensor *dx;                   /* NULL: not wanted; may be dy itself or d_residual_out itself */
  DLTensor *d_residual;           /* NULL: not wanted (it equals dx but for its dtype) */
  DLTensor *d_weight;             /* NULL: not wanted; (H) */
  DLDataType x_dtype;             /* LLAMA: dtype that forward rounded xhat to; all zero = x's dtype */
  int32_t accumulate_d_weight;    /* 1: d_weight += the gradient (d_weight must be float32) */
  float offset;                   /* as in forward */
} tigon_rms_norm_backward_args;

TIGON_API tigon_status tigon_rms_norm_backward(const tigon_exec *exec, const tigon_rms_norm_backward_args *args);
TIGON_API tigon_status tigon_rms_norm_backward_workspace(const tigon_exec *exec,
                                                         const tigon_rms_norm_backward_args *args, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
