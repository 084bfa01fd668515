/* The cases that every backend of the expert MLP is tested with. Each runs with x in every float dtype, and with the
 * saved block and without. */
#ifndef TIGON_TESTS_MOE_CASES_H
#define TIGON_TESTS_MOE_CASES_H

#include "tests/support/support.h"

typedef enum moe_routing {
  ROUTE_RANDOM,     /* any expert; duplicates happen */
  ROUTE_DISTINCT,   /* as a router gives them */
  ROUTE_SKEWED,     /* few experts get most */
  ROUTE_ONE,        /* all to the last expert */
  ROUTE_DUPLICATES, /* each token k times to one expert */
  ROUTE_INVALID,    /* a third each: negative, E or more, valid */
  ROUTE_NONE        /* no valid id */
} moe_routing;

enum {
  MOE_PACKED = 1,      /* gate_up in place of gate and up */
  MOE_IDS64 = 2,       /* int64 ids */
  MOE_STRIDED = 4,     /* padded rows, offsets, weights as slices of bigger tensors */
  MOE_EXPAND = 8,      /* x's rows and dout's rows are one row with stride 0 */
  MOE_ACCUMULATE = 16, /* weight gradients are added to float32 values */
  MOE_MIXED = 32,      /* every tensor has a dtype of its own */
  MOE_TRANSPOSED = 64, /* weights in TIGON_MOE_LAYOUT_TRANSPOSED */
  MOE_ON_INPUT = 128,  /* topk_weights scale x */
  MOE_LIMITED = 256    /* a third of the valid routes lies past row_limit */
};

typedef struct moe_case {
  int64_t tokens, choices, width, inner, experts; /* T, k, D, I, E */
  moe_routing routing;
  unsigned options;
} moe_case;

static const moe_case moe_cases[] = {
    {1, 1, 1, 1, 1, ROUTE_RANDOM, 0},
    {1, 1, 7, 8, 2, ROUTE_RANDOM, MOE_PACKED},
    {2, 1, 8, 7, 2, ROUTE_RANDOM, MOE_STRIDED},
    {7, 2, 63, 64, 8, ROUTE_DISTINCT, MOE_IDS64},
    {63, 2, 64, 63, 8, ROUTE_DISTINCT, MOE_PACKED | MOE_ACCUMULATE},
    {64, 2, 64, 65, 8, ROUTE_RANDOM, MOE_STRIDED | MOE_IDS64},
    {65, 3, 65, 64, 8, ROUTE_SKEWED, MOE_STRIDED | MOE_PACKED},
    {129, 1, 65, 63, 2, ROUTE_RANDOM, MOE_MIXED},
    {127, 2, 7, 129, 8, ROUTE_DISTINCT, MOE_ACCUMULATE | MOE_STRIDED},
    {17, 8, 129, 8, 64, ROUTE_DISTINCT, MOE_MIXED | MOE_PACKED},
    {9, 2, 129, 200, 2, ROUTE_RANDOM, 0},
    {5, 3, 200, 129, 8, ROUTE_DISTINCT, MOE_PACKED | MOE_STRIDED | MOE_ACCUMULATE},
    {11, 1, 200, 200, 1, ROUTE_RANDOM, MOE_IDS64 | MOE_ACCUMULATE},
    {70, 3, 8, 65, 2, ROUTE_DUPLICATES, 0},
    {33, 2, 65, 8, 8, ROUTE_DUPLICATES, MOE_PACKED | MOE_MIXED},
    {65, 2, 64, 64, 8, ROUTE_ONE, 0},
    {200, 8, 8, 8, 64, ROUTE_ONE, MOE_ACCUMULATE},
    {40, 8, 63, 7, 64, ROUTE_SKEWED, MOE_STRIDED | MOE_MIXED},
    {30, 3, 64, 8, 8, ROUTE_INVALID, MOE_IDS64},
    {31, 8, 8, 64, 64, ROUTE_INVALID, MOE_PACKED | MOE_STRIDED},
    {29, 2, 7, 7, 8, ROUTE_INVALID, MOE_ACCUMULATE | MOE_PACKED},
    {12, 2, 65, 7, 8, ROUTE_NONE, 0},
    {12, 2, 7, 65, 8, ROUTE_NONE, MOE_ACCUMULATE | MOE_IDS64},
    {3, 32, 64, 7, 64, ROUTE_DISTINCT, MOE_MIXED},
    {4, 32, 7, 64, 2, ROUTE_RANDOM, MOE_PACKED | MOE_IDS64},
    {64, 32, 8, 8, 1, ROUTE_RANDOM, MOE_STRIDED},
    {5, 8, 8, 7, 4096, ROUTE_DISTINCT, 0},
    {300, 2, 7, 1, 4096, ROUTE_RANDOM, MOE_PACKED | MOE_ACCUMULATE},
    {40, 32, 1, 8, 4096, ROUTE_SKEWED, MOE_STRIDED | MOE_MIXED},
    {33, 2, 64, 63, 8, ROUTE_RANDOM, MOE_EXPAND},
    {65, 3, 8, 129, 2, ROUTE_DISTINCT, MOE_EXPAND | MOE_PACKED | MOE_STRIDED},
    {0, 2, 64, 8, 8, ROUTE_RANDOM, 0},
    {0, 1, 8, 8, 2, ROUTE_RANDOM, MOE_PACKED | MOE_ACCUMULATE},
    {7, 2, 0, 8, 2, ROUTE_RANDOM, 0},
    {7, 2, 8, 0, 2, ROUTE_RANDOM, MOE_PACKED},
    {7, 2, 8, 0, 2, ROUTE_RANDOM, MOE_ACCUMULATE},
    {400, 1, 1, 1, 2, ROUTE_RANDOM, MOE_MIXED},
    {513, 1, 16, 32, 2, ROUTE_SKEWED, MOE_MIXED | MOE_ACCUMULATE},
    {3, 2, 32, 16, 8, ROUTE_RANDOM, MOE_STRIDED | MOE_IDS64 | MOE_MIXED},
    {257, 2, 31, 33, 8, ROUTE_DISTINCT, MOE_PACKED | MOE_MIXED | MOE_STRIDED},
    {65, 2, 64, 33, 8, ROUTE_RANDOM, MOE_TRANSPOSED},
    {17, 3, 33, 64, 8, ROUTE_SKEWED, MOE_TRANSPOSED | MOE_PACKED | MOE_STRIDED},
    {40, 2, 31, 65, 4, ROUTE_DISTINCT, MOE_TRANSPOSED | MOE_PACKED | MOE_ACCUMULATE},
    {33, 8, 16, 8, 64, ROUTE_INVALID, MOE_TRANSPOSED | MOE_MIXED | MOE_STRIDED},
    {64, 1, 65, 31, 16, ROUTE_RANDOM, MOE_ON_INPUT},
    {33, 2, 64, 65, 4, ROUTE_DISTINCT, MOE_ON_INPUT | MOE_PACKED | MOE_STRIDED},
    {41, 3, 33, 17, 8, ROUTE_INVALID, MOE_ON_INPUT | MOE_MIXED | MOE_IDS64},
    {29, 2, 130, 16, 4, ROUTE_DUPLICATES, MOE_ON_INPUT | MOE_ACCUMULATE | MOE_TRANSPOSED},
    {50, 2, 16, 130, 4, ROUTE_SKEWED, MOE_ON_INPUT | MOE_TRANSPOSED | MOE_PACKED | MOE_MIXED},
    {24, 2, 33, 8, 3, ROUTE_RANDOM, MOE_ON_INPUT | MOE_EXPAND},
    {60, 2, 33, 31, 8, ROUTE_RANDOM, MOE_LIMITED},
    {60, 3, 16, 40, 8, ROUTE_INVALID, MOE_LIMITED | MOE_PACKED | MOE_STRIDED},
    {45, 4, 31, 17, 8, ROUTE_SKEWED, MOE_LIMITED | MOE_ACCUMULATE | MOE_TRANSPOSED},
    {45, 2, 70, 17, 8, ROUTE_ONE, MOE_LIMITED | MOE_ON_INPUT | MOE_MIXED},
    {1, 32, 17, 17, 64, ROUTE_DISTINCT, MOE_LIMITED | MOE_ON_INPUT | MOE_TRANSPOSED | MOE_PACKED},
    {12, 2, 65, 7, 8, ROUTE_NONE, MOE_LIMITED | MOE_ON_INPUT},
    {0, 2, 64, 8, 8, ROUTE_RANDOM, MOE_TRANSPOSED | MOE_ON_INPUT | MOE_LIMITED},
    {7, 2, 0, 8, 2, ROUTE_RANDOM, MOE_TRANSPOSED | MOE_ON_INPUT},
    {7, 2, 8, 0, 2, ROUTE_RANDOM, MOE_TRANSPOSED | MOE_PACKED | MOE_LIMITED},
};
enum { MOE_CASES = sizeof moe_cases / sizeof *moe_cases };

#endif
