/* Tigon: fused kernels for training large language models. This header includes the whole public interface. */
#ifndef TIGON_H
#define TIGON_H

#include "tigon/base.h"
#include "tigon/lightning_attention.h"
#include "tigon/linear.h"
#include "tigon/linear_cross_entropy.h"
#include "tigon/moe.h"
#include "tigon/rms_norm.h"
#include "tigon/tensor.h"
#include "tigon/version.h"

#endif
