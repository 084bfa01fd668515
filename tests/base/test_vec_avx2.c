/* base/vec.h with AVX2, where compiler (gcc can switch inside a source) and processor allow. */
#include "tests/support/support.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("arch=x86-64-v3")
#include "tests/base/vec_checks.h"
_Static_assert(VF_LANES == 8, "the pragma took effect");

int main(void) {
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return run_vec_checks();
  printf("skipped: the processor has no AVX2\n");
  return 0;
}
#else
int main(void) {
  printf("skipped: needs gcc on x86-64\n");
  return 0;
}
#endif
