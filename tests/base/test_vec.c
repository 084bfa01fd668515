/* base/vec.h as the baseline instruction set has it. */
#include "tests/support/support.h"

#include "tests/base/vec_checks.h"

int main(void) { return run_vec_checks(); }
