/* The cases of lightning_attention that every backend is tested with. Tests add random ones (fixture.h). */
#ifndef TIGON_TESTS_LIGHTNING_ATTENTION_CASES_H
#define TIGON_TESTS_LIGHTNING_ATTENTION_CASES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

enum { MAX_BOUNDS = 70 };

typedef enum final_mode { FINAL_ABSENT, FINAL_OWN, FINAL_ALIAS } final_mode;

typedef struct lightning_case {
  const char *name;
  int64_t B, T, H, HV, K, V;
  double decay[4]; /* of head h: decay[h % 4] */
  bool decay_of_query_heads;
  double scale;                                /* 0: default */
  tigon_kind query_kind, value_kind, out_kind; /* 0: float32; gradients have their tensor's kind */
  bool initial_state;
  final_mode final_state;
  bool fused;                 /* q, k and v are views of one (B, T, H K + H K + HV V) tensor */
  bool expanded;              /* dout, d_final_state and initial_state have stride 0 in dimension 0 */
  tigon_kind bounds_kind;     /* 0: not packed */
  int bounds_count;           /* N + 1 */
  int64_t bounds[MAX_BOUNDS]; /* cu_seqlens as given, good or bad */
  int64_t first_bad;          /* position + 1 of the first bad value; 0: none */
} lightning_case;

#define TYPICAL \
  { 0.0, 0.0625, 0.5, 0.92 }
#define STEEP \
  { 4.0, 30.0, 1000.0, 1e4 }
#define GENTLE \
  { 1e-4, 2.0, 8.0, 0.004 }
#define ALL_BF16 .query_kind = TIGON_BF16, .value_kind = TIGON_BF16, .out_kind = TIGON_BF16
#define ALL_F16  .query_kind = TIGON_F16, .value_kind = TIGON_F16, .out_kind = TIGON_F16
#define STATES   .initial_state = true, .final_state = FINAL_OWN
#define IN_PLACE .initial_state = true, .final_state = FINAL_ALIAS

static const lightning_case lightning_cases[] = {
    {"one token", 1, 1, 1, 1, 1, 1, {0.5}, .final_state = FINAL_OWN},
    {"one token, states", 2, 1, 2, 2, 8, 8, TYPICAL, STATES},
    {"T 7", 1, 7, 2, 2, 16, 16, TYPICAL, STATES},
    {"T 31", 1, 31, 1, 2, 33, 17, GENTLE, IN_PLACE},
    {"T 63", 2, 63, 1, 1, 64, 64, {0.3}, .final_state = FINAL_OWN},
    {"T 64", 1, 64, 4, 4, 32, 32, TYPICAL, STATES},
    {"T 65", 1, 65, 4, 4, 32, 32, STEEP, STATES},
    {"T 127", 1, 127, 2, 2, 64, 128, TYPICAL, STATES},
    {"T 128", 1, 128, 2, 2, 128, 64, GENTLE, IN_PLACE},
    {"T 129", 2, 129, 1, 1, 65, 63, {0.92}, STATES},
    {"T 257", 1, 257, 2, 4, 40, 24, TYPICAL, STATES},
    {"heads of 128", 1, 200, 2, 2, 128, 128, GENTLE, STATES},
    {"K 7, V 129", 1, 100, 3, 3, 7, 129, TYPICAL, STATES},
    {"K 129, V 7", 1, 100, 3, 3, 129, 7, TYPICAL, STATES},
    {"K 1, V 1", 1, 150, 2, 2, 1, 1, GENTLE, IN_PLACE},
    {"K 300, V 260", 1, 70, 1, 1, 300, 260, {0.1}, STATES},
    {"no token", 2, 0, 2, 2, 8, 12, TYPICAL, STATES},
    {"no token, no initial state", 2, 0, 2, 2, 8, 12, TYPICAL, .final_state = FINAL_OWN},
    {"no batch row", 0, 5, 2, 2, 8, 12, TYPICAL, STATES},
    {"groups of 2, decay per query head", 2, 90, 2, 4, 24, 40, TYPICAL, .decay_of_query_heads = true, STATES},
    {"groups of 4, decay per value head", 1, 140, 1, 4, 33, 31, TYPICAL, STATES},
    {"groups of 4, decay per query head", 1, 140, 2, 8, 16, 16, GENTLE, .decay_of_query_heads = true, IN_PLACE},
    {"groups of 8, large heads", 1, 66, 1, 8, 200, 190, TYPICAL, STATES},
    {"scale", 1, 80, 2, 2, 32, 32, TYPICAL, .scale = 0.73, STATES},
    {"negative scale", 1, 80, 2, 2, 32, 32, TYPICAL, .scale = -1.25, STATES},
    {"bf16", 1, 190, 4, 4, 64, 64, TYPICAL, .scale = 0.125, ALL_BF16, STATES},
    {"bf16, ragged", 2, 75, 2, 4, 37, 51, GENTLE, ALL_BF16, IN_PLACE},
    {"f16", 1, 190, 4, 4, 64, 64, TYPICAL, .scale = 0.125, ALL_F16, STATES},
    {"f16, ragged", 2, 75, 2, 4, 37, 51, GENTLE, ALL_F16, IN_PLACE},
    {"mixed types", 1, 100, 2, 2, 48, 32, TYPICAL, .query_kind = TIGON_BF16, .value_kind = TIGON_F16, STATES},
    {"fused", 2, 100, 2, 4, 48, 32, TYPICAL, .fused = true, STATES},
    {"fused bf16", 2, 100, 2, 2, 64, 64, TYPICAL, ALL_BF16, .fused = true, .final_state = FINAL_OWN},
    {"expanded", 3, 100, 2, 2, 24, 32, TYPICAL, .expanded = true, .initial_state = true, .final_state = FINAL_OWN},
    {"packed", 1, 300, 2, 2, 32, 40, TYPICAL, STATES, .bounds_kind = TIGON_I32, .bounds_count = 4,
     .bounds = {0, 65, 129, 300}},
    {"packed, in place, groups", 1, 300, 1, 2, 32, 40, GENTLE, IN_PLACE, .bounds_kind = TIGON_I64, .bounds_count = 5,
     .bounds = {0, 1, 2, 130, 300}},
    {"packed, empty sequences", 1, 100, 2, 2, 16, 16, TYPICAL, STATES, .bounds_kind = TIGON_I32, .bounds_count = 7,
     .bounds = {0, 0, 0, 64, 64, 100, 100}},
    {"packed, empty, no initial state", 1, 100, 2, 2, 16, 16, TYPICAL, .final_state = FINAL_OWN,
     .bounds_kind = TIGON_I32, .bounds_count = 4, .bounds = {0, 64, 64, 100}},
    {"packed, padding at the end", 1, 700, 2, 2, 16, 16, TYPICAL, STATES, .bounds_kind = TIGON_I64, .bounds_count = 3,
     .bounds = {0, 70, 111}},
    {"packed, no sequence", 1, 30, 2, 2, 16, 16, TYPICAL, STATES, .bounds_kind = TIGON_I32, .bounds_count = 1,
     .bounds = {0}},
    {"packed, no token", 1, 0, 2, 2, 16, 16, TYPICAL, STATES, .bounds_kind = TIGON_I32, .bounds_count = 3,
     .bounds = {0, 0, 0}},
    {"packed, does not start at 0", 1, 100, 2, 2, 16, 16, TYPICAL, STATES, .bounds_kind = TIGON_I32, .bounds_count = 3,
     .bounds = {5, 70, 100}, .first_bad = 1},
    {"packed, starts below 0", 1, 100, 2, 2, 16, 16, TYPICAL, STATES, .bounds_kind = TIGON_I64, .bounds_count = 3,
     .bounds = {-5, 70, 100}, .first_bad = 1},
    {"packed, decreases", 1, 100, 2, 2, 16, 16, TYPICAL, STATES, .bounds_kind = TIGON_I32, .bounds_count = 5,
     .bounds = {0, 70, 30, 90, 100}, .first_bad = 3},
    {"packed, past the end", 1, 100, 2, 2, 16, 16, TYPICAL, STATES, .bounds_kind = TIGON_I64, .bounds_count = 4,
     .bounds = {0, 70, INT64_MAX, 100}, .first_bad = 3},
    {"packed, all wrong", 1, 100, 1, 2, 16, 16, TYPICAL, IN_PLACE, .bounds_kind = TIGON_I64, .bounds_count = 4,
     .bounds = {INT64_MIN, INT64_MAX, INT64_MIN, 3}, .first_bad = 1},
    {"negative decay counts as 0", 1, 70, 4, 4, 16, 16, {0.5, -0.0, -1.0, -INFINITY}, STATES},
    {"infinite decay", 1, 70, 4, 4, 16, 16, {0.5, INFINITY, 0.1, INFINITY}, STATES},
    {"decay not a number counts as 0", 1, 70, 2, 2, 16, 16, {0.5, NAN, 0.5, NAN}, STATES},
};

/* Packed lengths 1, 2, ..., 64: every number of tokens in a last chunk, and every starting position. */
static inline lightning_case lightning_all_lengths(void) {
  lightning_case c = {"lengths 1 to 64", 1, 0, 2, 2, 24, 20, TYPICAL, STATES, .bounds_kind = TIGON_I32};
  for (int64_t length = 0; length <= 64; length++) c.bounds[c.bounds_count++] = c.T += length;
  return c;
}

#endif
