/*
 * Sources named cpu*.c, and base/gemm_kernel.c, are compiled once per instruction set with TIGON_ISA set to its name.
 * Their external functions carry the name as a suffix: declare with TIGON_ISA_DECLARE in the header, define with
 * TIGON_ISA_FN, call from ordinary sources with TIGON_ISA_CALL. With TIGON_ONE_ISA there is the generic set alone.
 */
#ifndef TIGON_BASE_ISA_H
#define TIGON_BASE_ISA_H

typedef enum tigon_isa {
  TIGON_ISA_GENERIC = 0,
  TIGON_ISA_AVX2 = 1,
  TIGON_ISA_AVX512 = 2,
  TIGON_ISA_AVX512_BF16 = 3, /* and products of bfloat16 with bfloat16 as dot products of pairs (base/gemm_kernel.c) */
  TIGON_ISA_AMX = 4          /* AVX-512, and the matrix unit for products of bfloat16 (base/gemm_amx.c) */
} tigon_isa;

/* The set in use, chosen at the first call (tigon_cpu_isa). */
tigon_isa tigon_isa_in_use(void);

#define TIGON_PASTE_(a, b) a##_##b
#define TIGON_PASTE(a, b)  TIGON_PASTE_(a, b)
#define TIGON_ISA_FN(name) TIGON_PASTE(name, TIGON_ISA)

#if defined(__x86_64__) && !defined(TIGON_ONE_ISA)
#define TIGON_ISA_DECLARE(result, name, parameters) \
  result name##_generic parameters;                 \
  result name##_avx2 parameters;                    \
  result name##_avx512 parameters
/* The function itself, so that it can be called or passed on. */
#define TIGON_ISA_PICK(name)                              \
  (tigon_isa_in_use() >= TIGON_ISA_AVX512 ? name##_avx512 \
   : tigon_isa_in_use() == TIGON_ISA_AVX2 ? name##_avx2   \
                                          : name##_generic)
#else
#define TIGON_ISA_DECLARE(result, name, parameters) result name##_generic parameters
#define TIGON_ISA_PICK(name)                        name##_generic
#endif
#define TIGON_ISA_CALL(name, ...) TIGON_ISA_PICK(name)(__VA_ARGS__)

#endif
