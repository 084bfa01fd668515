/* The packed product's inner part for two bfloat16 operands, on dot products of pairs (AVX512_BF16). They take
 * subnormal numbers as zero. */
#if defined(TIGON_HAVE_AVX512_BF16)
#define TIGON_ISA avx512_bf16
#define TIGON_GEMM_PAIRS
#include "base/gemm_kernel.c"
#else
typedef int tigon_no_avx512_bf16; /* a source is not empty */
#endif
