/* Functions from the approximations of the multiprocessor's special function unit, which are within 2^-22 of the value. */
#ifndef TIGON_KERNEL_MATH_CUH
#define TIGON_KERNEL_MATH_CUH

/* 1 / (1 + exp(-v)), in four instructions: the exponential overflows to Inf, whose reciprocal is 0. */
__device__ __forceinline__ float sigmoid(float v) {
  float power, share;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.0f + power));
  return share;
}

#endif
