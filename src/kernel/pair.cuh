/* Two-lane fp32 arithmetic. From sm_100 on one instruction works on both lanes; elsewhere two do, with the same bits,
 * since both forms round each lane once to nearest even. */
#ifndef TIGON_KERNEL_PAIR_CUH
#define TIGON_KERNEL_PAIR_CUH

/* The packed instructions exist from this architecture on; which form runs is settled when an image is compiled. */
#define PAIR_PACKED_FROM 1000

__device__ __forceinline__ unsigned long long pair_bits(float2 v) {
  unsigned long long bits;
  asm("mov.b64 %0, {%1, %2};" : "=l"(bits) : "f"(v.x), "f"(v.y));
  return bits;
}

__device__ __forceinline__ float2 pair_of_bits(unsigned long long bits) {
  float2 v;
  asm("mov.b64 {%0, %1}, %2;" : "=f"(v.x), "=f"(v.y) : "l"(bits));
  return v;
}

/* a b + c */
__device__ __forceinline__ float2 pair_fma(float2 a, float2 b, float2 c) {
#if __CUDA_ARCH__ >= PAIR_PACKED_FROM
  unsigned long long d;
  asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(d) : "l"(pair_bits(a)), "l"(pair_bits(b)), "l"(pair_bits(c)));
  return pair_of_bits(d);
#else
  return make_float2(__fmaf_rn(a.x, b.x, c.x), __fmaf_rn(a.y, b.y, c.y));
#endif
}

__device__ __forceinline__ float2 pair_mul(float2 a, float2 b) {
#if __CUDA_ARCH__ >= PAIR_PACKED_FROM
  unsigned long long d;
  asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(d) : "l"(pair_bits(a)), "l"(pair_bits(b)));
  return pair_of_bits(d);
#else
  return make_float2(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y));
#endif
}

__device__ __forceinline__ float2 pair_add(float2 a, float2 b) {
#if __CUDA_ARCH__ >= PAIR_PACKED_FROM
  unsigned long long d;
  asm("add.rn.f32x2 %0, %1, %2;" : "=l"(d) : "l"(pair_bits(a)), "l"(pair_bits(b)));
  return pair_of_bits(d);
#else
  return make_float2(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y));
#endif
}

__device__ __forceinline__ float2 pair_set(float value) { return make_float2(value, value); }

#endif
