#include "base/isa.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tigon/base.h"

#if defined(__x86_64__) && !defined(TIGON_ONE_ISA)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[] = {"generic", "avx2", "avx512", "avx512_bf16", "amx"};

#if defined(__x86_64__) && !defined(TIGON_ONE_ISA)
/* What -march=x86-64-v3 may use beside AVX2, and compilers' own queries do not all know: MOVBE, F16C, BMI1, LZCNT. */
static bool has_rest_of_v3(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_MOVBE) || !(c & bit_F16C)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_BMI)) return false;
  return __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT);
}

#endif

#if defined(TIGON_HAVE_AMX)
/* Linux grants the unit's registers to a process on request, and refuses where the processor or the kernel has none. */
static bool may_use_amx(void) {
  enum { BF16 = 1 << 22, TILE = 1 << 24, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & BF16) || !(d & TILE)) return false;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
static bool may_use_amx(void) { return false; }
#endif

static tigon_isa best_isa(void) {
#if defined(__x86_64__) && !defined(TIGON_ONE_ISA)
  __builtin_cpu_init();
  if (!has_rest_of_v3()) return TIGON_ISA_GENERIC;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
#if defined(TIGON_HAVE_AVX512_BF16)
    return __builtin_cpu_supports("avx512bf16") ? TIGON_ISA_AVX512_BF16 : TIGON_ISA_AVX512;
#else
    return TIGON_ISA_AVX512;
#endif
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    return TIGON_ISA_AVX2;
#endif
  return TIGON_ISA_GENERIC;
}

tigon_isa tigon_isa_in_use(void) {
  static _Atomic int chosen = -1;
  int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
  if (isa >= 0) return (tigon_isa)isa;
  isa = (int)best_isa();
  const char *wanted = getenv("TIGON_CPU_ISA");
  /* Asked for last: the grant makes the thread state of the whole process larger. */
  if (isa >= TIGON_ISA_AVX512 && (!wanted || strcmp(wanted, names[TIGON_ISA_AMX]) == 0) && may_use_amx())
    isa = TIGON_ISA_AMX;
  for (int i = 0; wanted && i <= isa; i++)
    if (strcmp(wanted, names[i]) == 0) isa = i;
  atomic_store_explicit(&chosen, isa, memory_order_relaxed);
  return (tigon_isa)isa;
}

const char *tigon_cpu_isa(void) { return names[tigon_isa_in_use()]; }
