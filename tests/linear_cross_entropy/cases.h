/* The cases that every backend of linear cross entropy is tested with. */
#ifndef TIGON_TESTS_LINEAR_CROSS_ENTROPY_CASES_H
#define TIGON_TESTS_LINEAR_CROSS_ENTROPY_CASES_H

#include "tests/support/support.h"

enum { LOSS = 1, LSE = 2, ENTROPY = 4, ALL = 7 };    /* upstream gradients */
enum { DX = 1, DWEIGHT = 2, DBIAS = 4, FROZEN = 0 }; /* gradient outputs that are NOT wanted */

typedef enum upstream_layout { DENSE, EXPANDED, SPACED } upstream_layout;

typedef enum class_weights { NO_WEIGHTS, POSITIVE, WITH_ZEROS } class_weights;

typedef struct lce_case {
  const char *name;
  int64_t tokens, width, vocabulary;
  tigon_kind x, weight, bias; /* 0: float32; bias: absent */
  tigon_kind target;          /* 0: int64 */
  int ignored;                /* per cent of the tokens */
  int64_t ignore_index;       /* 0: the default, -100 */
  float inverse_temperature, z_loss;
  double scale;           /* standard deviation of the logits; 0: 1 */
  double magnitude;       /* of the logits; 0: from scale, softcap and temperature */
  double gradient_bound;  /* of gate 1, for logits of magnitude 1, relative to the largest element; 0: 1e-6 */
  unsigned upstream;      /* 0: LOSS */
  upstream_layout layout; /* of the upstream gradients */
  unsigned unwanted;      /* gradients left out */
  bool strided;           /* padded matrices, spaced vectors */
  int out_of_range;       /* per cent of the targets */
  float softcap, label_smoothing;
  class_weights class_weight;
  bool token_weight;
  int64_t padding;   /* rows of weight past the classes */
  bool accumulate;   /* weight gradients are added to */
  tigon_kind argmax; /* 0: int64 */
} lce_case;

#define HALF(kind) .x = kind, .weight = kind
#define F16_BIAS   .bias = TIGON_F16
#define BF16_BIAS  .bias = TIGON_BF16
#define F32_BIAS   .bias = TIGON_F32

static const lce_case lce_cases[] = {
    /* sizes: every count of tokens, width and vocabulary */
    {"no token", 0, 64, 320, F32_BIAS, .upstream = ALL},
    {"one of each", 1, 1, 1, F32_BIAS, .upstream = ALL},
    {"one token", 1, 64, 320, .upstream = ALL},
    {"one class", 7, 8, 1, F32_BIAS, .upstream = ALL},
    {"two classes", 63, 7, 2, F32_BIAS, .upstream = ALL, .target = TIGON_I32},
    {"no width", 7, 0, 65, F32_BIAS, .upstream = ALL},
    {"no class", 5, 8, 0, F32_BIAS, .upstream = ALL},
    {"7, 1, 7", 7, 1, 7, .upstream = ALL},
    {"63, 7, 63", 63, 7, 63, HALF(TIGON_BF16), .upstream = ALL},
    {"64, 8, 64", 64, 8, 64, HALF(TIGON_F16), F16_BIAS},
    {"65, 64, 65", 65, 64, 65, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL},
    {"127, 65, 320", 127, 65, 320, F32_BIAS, .upstream = ALL},
    {"129, 123, 517", 129, 123, 517, HALF(TIGON_BF16), F32_BIAS, .upstream = ALL},
    {"521, 64, 320", 521, 64, 320, HALF(TIGON_F16), .upstream = ALL},
    {"521, 7, 1000", 521, 7, 1000, F32_BIAS, .upstream = ALL},
    {"64, 256, 1000", 64, 256, 1000, HALF(TIGON_BF16), .upstream = ALL},
    {"129, 65, 1000", 129, 65, 1000, .upstream = ALL, .target = TIGON_I32},
    {"7, 8, 32001", 7, 8, 32001, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL},
    {"1, 64, 32001", 1, 64, 32001, HALF(TIGON_F16), .upstream = ALL},
    {"65, 1, 2305", 65, 1, 2305, F32_BIAS, .upstream = ALL},
    {"1000, 8, 63", 1000, 8, 63, HALF(TIGON_BF16), .upstream = ALL},
    /* options */
    {"temperature", 127, 64, 517, F32_BIAS, .inverse_temperature = 1.25f, .upstream = ALL, .z_loss = 1e-2f},
    {"cold", 63, 64, 320, F32_BIAS, .inverse_temperature = 10.0f, .upstream = ALL},
    {"hot", 63, 64, 320, F32_BIAS, .inverse_temperature = 0.1f, .upstream = ALL},
    {"z-loss", 65, 65, 320, .z_loss = 0.1f},
    {"z-loss, bfloat16", 65, 65, 320, HALF(TIGON_BF16), BF16_BIAS, .z_loss = 1e-4f, .upstream = ALL},
    {"wide logits", 64, 64, 1000, F32_BIAS, .scale = 8, .upstream = ALL},
    {"narrow logits", 64, 64, 1000, F32_BIAS, .scale = 0.01, .upstream = ALL},
    /* ignored and bad targets */
    {"half ignored", 129, 64, 517, F32_BIAS, .ignored = 50, .upstream = ALL},
    {"half ignored, bfloat16", 521, 65, 320, HALF(TIGON_BF16), BF16_BIAS, .ignored = 50, .upstream = ALL},
    {"nearly all ignored", 129, 64, 320, HALF(TIGON_F16), .ignored = 95, .upstream = ALL, .target = TIGON_I32},
    {"all ignored", 65, 64, 320, HALF(TIGON_BF16), BF16_BIAS, .ignored = 100, .upstream = ALL},
    {"ignore index 3", 127, 64, 65, F32_BIAS, .ignored = 50, .ignore_index = 3, .upstream = ALL},
    {"ignore index 10^6", 64, 64, 65, .ignored = 50, .ignore_index = 1000000, .target = TIGON_I32},
    {"ignore index -1", 64, 64, 65, .ignored = 50, .ignore_index = -1, .upstream = ALL},
    {"bad targets", 65, 64, 320, F32_BIAS, .out_of_range = 30, .ignored = 20, .upstream = ALL},
    {"bad targets, int32", 65, 8, 65, HALF(TIGON_BF16), .out_of_range = 30, .target = TIGON_I32},
    {"only bad targets", 65, 8, 65, F32_BIAS, .out_of_range = 100, .upstream = ALL},
    /* upstream gradients */
    {"loss only", 65, 64, 320, F32_BIAS, .upstream = LOSS},
    {"lse only", 65, 64, 320, F32_BIAS, .upstream = LSE},
    {"entropy only", 65, 64, 320, F32_BIAS, .upstream = ENTROPY},
    {"entropy only, bfloat16", 65, 64, 320, HALF(TIGON_BF16), .upstream = ENTROPY, .inverse_temperature = 0.7f},
    {"loss and entropy", 65, 64, 320, .upstream = LOSS | ENTROPY, .ignored = 20},
    {"loss and lse", 65, 64, 320, .upstream = LOSS | LSE, .z_loss = 0.01f},
    {"expanded", 127, 64, 320, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL, .layout = EXPANDED},
    {"expanded loss", 129, 65, 65, .upstream = LOSS, .layout = EXPANDED, .ignored = 50},
    {"spaced", 127, 65, 320, F32_BIAS, .upstream = ALL, .layout = SPACED},
    /* gradients left out */
    {"frozen weight", 65, 64, 1000, HALF(TIGON_BF16), .unwanted = DWEIGHT, .upstream = ALL},
    {"frozen x", 65, 64, 1000, HALF(TIGON_BF16), BF16_BIAS, .unwanted = DX, .upstream = ALL},
    {"bias only", 65, 64, 1000, F32_BIAS, .unwanted = DX | DWEIGHT, .upstream = ALL},
    {"no bias gradient", 65, 64, 320, F32_BIAS, .unwanted = DBIAS, .upstream = ALL},
    {"frozen x and bias", 65, 64, 1000, F32_BIAS, .unwanted = DX | DBIAS, .upstream = ALL},
    /* layouts and dtype mixes */
    {"strided", 129, 65, 517, F32_BIAS, .strided = true, .upstream = ALL, .layout = SPACED},
    {"strided, bfloat16", 127, 123, 1000, HALF(TIGON_BF16), BF16_BIAS, .strided = true, .upstream = ALL, .ignored = 30},
    {"strided, float16", 63, 7, 63, HALF(TIGON_F16), F16_BIAS, .strided = true, .upstream = ALL, .target = TIGON_I32},
    {"float32 weight", 65, 64, 1000, .x = TIGON_BF16, .weight = TIGON_F32, .bias = TIGON_F32, .upstream = ALL},
    {"float32 x", 65, 64, 1000, .x = TIGON_F32, .weight = TIGON_BF16, .bias = TIGON_F16, .upstream = ALL,
     .ignored = 40},
    {"float16 x", 65, 64, 1000, .x = TIGON_F16, .weight = TIGON_BF16, .bias = TIGON_BF16, .upstream = ALL},
    {"float16 weight", 65, 64, 320, .x = TIGON_BF16, .weight = TIGON_F16, .bias = TIGON_F32, .upstream = ALL},
    /* the cap, smoothing, weights, padding, sums into gradients */
    {"softcap 30", 65, 64, 320, F32_BIAS, .upstream = ALL, .softcap = 30, .scale = 20},
    {"softcap 50, temperature", 65, 64, 320, HALF(TIGON_BF16), .upstream = ALL, .softcap = 50, .scale = 100,
     .inverse_temperature = 0.7f},
    {"softcap far above", 65, 64, 320, F32_BIAS, .upstream = ALL, .softcap = 1e6f},
    {"softcap far below", 65, 64, 320, F32_BIAS, .upstream = ALL, .softcap = 0.1f},
    {"smoothing", 65, 64, 320, F32_BIAS, .upstream = ALL, .label_smoothing = 0.1f},
    {"smoothing 1", 65, 64, 320, HALF(TIGON_BF16), .upstream = ALL, .label_smoothing = 1},
    {"class weights", 65, 64, 320, F32_BIAS, .upstream = ALL, .class_weight = WITH_ZEROS},
    {"class weights, smoothing", 129, 65, 1000, HALF(TIGON_F16), F16_BIAS, .upstream = ALL, .class_weight = WITH_ZEROS,
     .label_smoothing = 0.1f, .ignored = 20},
    {"token weights", 129, 64, 320, F32_BIAS, .upstream = ALL, .token_weight = true, .z_loss = 0.01f,
     .gradient_bound = 2e-6}, /* one target's g W is the largest element, and has a whole sum's walk of roundings */
    {"padding", 65, 64, 320, F32_BIAS, .upstream = ALL, .padding = 63, .argmax = TIGON_I32, .out_of_range = 10},
    {"padding, several tiles", 65, 16, 2305, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL, .padding = 700},
    {"one class and padding", 9, 8, 64, F32_BIAS, .upstream = ALL, .padding = 63},
    {"accumulate", 65, 64, 1000, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL, .accumulate = true},
    {"accumulate, nothing kept", 65, 64, 100, F32_BIAS, .upstream = ALL, .accumulate = true, .ignored = 100},
    {"every option", 129, 65, 1600, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL, .softcap = 30, .scale = 10,
     .inverse_temperature = 1.5f, .label_smoothing = 0.1f, .class_weight = WITH_ZEROS, .token_weight = true,
     .z_loss = 0.01f, .padding = 100, .accumulate = true, .ignored = 20, .out_of_range = 5, .strided = true},
    /* enough of both for several row blocks, splits and tiles at once */
    {"many tiles", 900, 16, 2000, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL, .ignored = 10},
    {"many tiles, float32", 1201, 9, 1537, F32_BIAS, .upstream = ALL, .ignored = 10},
    {"wide", 3, 12288, 65, HALF(TIGON_BF16), .upstream = ALL, .gradient_bound = 4e-6}, /* logits of 12288 terms */
};

enum { LCE_CASES = sizeof lce_cases / sizeof *lce_cases };

/* A small case with any mix of options, dtypes and layouts. */
static inline lce_case lce_random_case(test_rng *rng) {
  static const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};
  static const float temperatures[] = {0, 0, 0.7f, 1.5f, 10}, caps[] = {0, 0, 30, 50, 2}, smoothing[] = {0, 0, 0.1f, 1};
  static const int64_t vocabularies[] = {7, 65, 320, 1031, 2305}, paddings[] = {0, 0, 1, 6, 47};
#define PICK(list)      (list)[test_random_range(rng, 0, (int64_t)(sizeof(list) / sizeof *(list)) - 1)]
#define CHANCE(percent) (test_random_range(rng, 0, 99) < (percent))
  lce_case c = {.name = "random",
                .tokens = CHANCE(20) ? test_random_range(rng, 1, 9) : test_random_range(rng, 32, 64),
                .width = test_random_range(rng, 1, 32),
                .x = PICK(kinds),
                .weight = PICK(kinds),
                .bias = CHANCE(60) ? PICK(kinds) : 0,
                .target = CHANCE(50) ? TIGON_I32 : TIGON_I64,
                .argmax = CHANCE(50) ? TIGON_I32 : TIGON_I64,
                .ignored = CHANCE(50) ? 0 : 30,
                .ignore_index = CHANCE(80) ? 0 : 3,
                .out_of_range = CHANCE(80) ? 0 : 10,
                .inverse_temperature = PICK(temperatures),
                .z_loss = CHANCE(60) ? 0 : 0.01f,
                .scale = CHANCE(70) ? 1 : 12,
                .upstream = (unsigned)test_random_range(rng, 1, 7),
                .layout = (upstream_layout)test_random_range(rng, 0, 2),
                .unwanted = CHANCE(70) ? 0 : (unsigned)test_random_range(rng, 1, 7),
                .strided = CHANCE(40),
                .softcap = PICK(caps),
                .label_smoothing = PICK(smoothing),
                .class_weight = (class_weights)test_random_range(rng, 0, 2),
                .token_weight = CHANCE(40),
                .padding = PICK(paddings),
                .accumulate = CHANCE(30)};
  c.vocabulary = PICK(vocabularies) + c.padding;
  /* Four sigma of the walk of V roundings in a sum; the default does for the fixed cases. */
  c.gradient_bound = 2e-6 * fmax(1, sqrt((double)c.vocabulary / 320));
  /* Where the softmax is peaked, four sigma count and not one; a cap leaves the rounding of what it caps. */
  if (c.scale > 1) c.magnitude = 4 * c.scale * fmax(1, (double)c.inverse_temperature);
#undef PICK
#undef CHANCE
  return c;
}

#endif
