/* Random shapes and mixes of all options against the oracle: experts and router. */
#include "tests/moe/check.h"
#include "tests/moe/route_check.h"

static const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};

/* Small numbers mostly, some up to `most`. */
static int64_t extent(test_rng *rng, int64_t least, int64_t most) {
  const int64_t limit = test_random(rng) % 4 ? (most < 40 ? most : 40) : most;
  return test_random_range(rng, least, limit);
}

static unsigned random_options(test_rng *rng) {
  static const unsigned all[] = {MOE_PACKED, MOE_IDS64,      MOE_STRIDED,  MOE_ACCUMULATE,
                                 MOE_MIXED,  MOE_TRANSPOSED, MOE_ON_INPUT, MOE_LIMITED};
  unsigned options = test_random(rng) % 16 ? 0 : MOE_EXPAND;
  for (int i = 0; i < 8; i++)
    if (test_random(rng) % 5 < 2) options |= all[i];
  return options;
}

static void test_random_experts(void **state) {
  (void)state;
  test_rng rng = {2026};
  for (int i = 0; i < 500; i++) {
    moe_case c = {.tokens = extent(&rng, 1, 200),
                  .choices = extent(&rng, 1, test_random(&rng) % 3 ? 4 : 32),
                  .width = extent(&rng, 1, 300),
                  .inner = extent(&rng, 1, 300),
                  .experts = extent(&rng, 1, 600),
                  .routing = (moe_routing)(test_random(&rng) % (ROUTE_NONE + 1)),
                  .options = random_options(&rng)};
    /* The oracle recomputes a token's row for every expert it uses; weights are tensors of their own. */
    while (c.tokens * c.choices * c.width * c.inner > 2000000)
      c.tokens = (c.tokens + 1) / 2, c.inner = (c.inner + 1) / 2;
    while (c.experts * c.width * c.inner > 500000) c.experts = (c.experts + 1) / 2, c.width = (c.width + 1) / 2;
    static const int threads[] = {1, 2, 7};
    moe_check_small_case(&c, kinds[i % 3], test_random(&rng) % 2, threads[test_random(&rng) % 3], test_random(&rng));
  }
}

/* A number of groups that divides the experts, and options for them. */
static void random_groups(route_case *c, test_rng *rng) {
  const int64_t size = test_random_range(rng, 1, 12);
  c->n_group = (int32_t)test_random_range(rng, 1, 20);
  c->experts = size * c->n_group;
  const int64_t room = c->experts < 32 ? c->experts : 32;
  if (c->choices > room) c->choices = room;
  c->topk_group = (int32_t)test_random_range(rng, (c->choices + size - 1) / size, c->n_group);
  c->group_top = (int32_t)test_random_range(rng, 0, size);
}

static void test_random_routers(void **state) {
  (void)state;
  test_rng rng = {2027};
  for (int i = 0; i < 600; i++) {
    route_case c = {.tokens = extent(&rng, 1, 300),
                    .experts = extent(&rng, 1, 700),
                    .values = (logit_values)(test_random(&rng) % (LOGITS_SPECIAL + 1)),
                    .options = (unsigned)(test_random(&rng) % 32) & ~(unsigned)ROUTE_EXPAND,
                    .bias = (bias_values)(test_random(&rng) % (BIAS_SPECIAL + 1))};
    c.choices = test_random_range(&rng, 1, c.experts < 32 ? c.experts : 32);
    if (test_random(&rng) % 2) random_groups(&c, &rng);
    const int score = (int)(test_random(&rng) % 2), renormalize = (int)(test_random(&rng) % 2);
    route_problem p;
    route_make(&p, &c, kinds[i % 3], score, renormalize, test_random(&rng));
    p.small = true;
    route_check_problem(&p, 2);
    route_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_experts), cmocka_unit_test(test_random_routers)};
  return test_gate_report("moe_random", cmocka_run_group_tests(tests, NULL, NULL));
}
