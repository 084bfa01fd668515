/* base/vec.h with AVX-512, where compiler (gcc can switch inside a source) and processor allow. */
#include "tests/support/support.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("arch=x86-64-v4")
#include "tests/base/vec_checks.h"
_Static_assert(VF_LANES == 16, "the pragma took effect");

int main(void) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
    return run_vec_checks();
  printf("skipped: the processor has no AVX-512\n");
  return 0;
}
#else
int main(void) {
  printf("skipped: needs gcc on x86-64\n");
  return 0;
}
#endif
