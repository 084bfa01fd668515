/* The integer plan: every invariant, on thousands of random routings, for alignments 1 and 64, whole and in blocks. */
#include "moe/plan.h"
#include "tests/support/support.h"

typedef enum pattern { UNIFORM, SKEWED, ONE, SAME_IN_TOKEN, OUT_OF_RANGE, NONE, PATTERNS } pattern;

typedef struct routing_data {
  tigon_moe_routing routing;
  int64_t *wide;
  int32_t *narrow;
} routing_data;

static int64_t random_id(test_rng *rng, pattern p, int64_t t, int64_t experts) {
  switch (p) {
  case SKEWED:
    return test_random(rng) % 4 ? 0 : test_random_range(rng, 0, experts - 1);
  case ONE:
    return experts - 1;
  case SAME_IN_TOKEN:
    return t * 13 % experts;
  case OUT_OF_RANGE:
    return test_random_range(rng, -experts, 2 * experts);
  case NONE:
    return test_random(rng) % 2 ? -1 - (int64_t)(test_random(rng) >> 40) : experts + (int64_t)(test_random(rng) >> 40);
  default:
    return test_random_range(rng, 0, experts - 1);
  }
}

/* Ids in rows `stride` elements apart, int32 or int64. */
static routing_data make_routing(test_rng *rng, pattern p, int64_t tokens, int64_t choices, int64_t experts) {
  const int64_t stride = choices + test_random_range(rng, 0, 3);
  routing_data d = {.wide = malloc((size_t)(tokens * stride + 1) * sizeof(int64_t)),
                    .narrow = malloc((size_t)(tokens * stride + 1) * sizeof(int32_t))};
  const int is_wide = test_random(rng) % 2;
  for (int64_t i = 0; i < tokens * stride; i++) {
    int64_t id = random_id(rng, p, i / stride, experts);
    if (!is_wide && p == NONE && (id > INT32_MAX || id < INT32_MIN)) id = -1;
    d.wide[i] = id;
    d.narrow[i] = (int32_t)id;
  }
  if (is_wide && tokens > 0 && p == OUT_OF_RANGE) d.wide[0] = INT64_MIN; /* not 0 in its low half */
  if (is_wide && tokens > 1 && p == OUT_OF_RANGE) d.wide[stride] = (int64_t)1 << 32;
  d.routing = (tigon_moe_routing){
      is_wide ? (const void *)d.wide : d.narrow, is_wide, stride, tokens, choices, experts, tokens * choices};
  if (test_random(rng) % 2) { /* limited; the limit may be enough */
    int64_t needed;
    d.routing.end = tigon_moe_plan_end(&d.routing, test_random_range(rng, 0, tokens * choices + 1), &needed);
  }
  return d;
}

/* A plan with guards behind every array. */
enum { GUARD = 16 };

typedef struct plan_memory {
  tigon_moe_plan plan;
  int64_t bound;
} plan_memory;

static plan_memory make_plan(const tigon_moe_routing *r, int64_t align) {
  const int64_t routes = r->tokens * r->choices;
  plan_memory m = {.bound = tigon_moe_row_bound(routes, r->experts, align)};
  m.plan.count = malloc((size_t)(r->experts + GUARD) * sizeof(int64_t));
  m.plan.begin = malloc((size_t)(r->experts + GUARD) * sizeof(int64_t));
  m.plan.next = malloc((size_t)(r->experts + GUARD) * sizeof(int64_t));
  m.plan.row_token = malloc((size_t)(m.bound + GUARD) * sizeof(int32_t));
  m.plan.row_choice = malloc((size_t)(m.bound + GUARD));
  m.plan.row_of = malloc((size_t)(routes + GUARD) * sizeof(int64_t));
  memset(m.plan.count, 0x5a, (size_t)(r->experts + GUARD) * sizeof(int64_t));
  memset(m.plan.begin, 0x5a, (size_t)(r->experts + GUARD) * sizeof(int64_t));
  memset(m.plan.next, 0x5a, (size_t)(r->experts + GUARD) * sizeof(int64_t));
  memset(m.plan.row_token, 0x5a, (size_t)(m.bound + GUARD) * sizeof(int32_t));
  memset(m.plan.row_choice, 0x5a, (size_t)(m.bound + GUARD));
  memset(m.plan.row_of, 0x5a, (size_t)(routes + GUARD) * sizeof(int64_t));
  return m;
}

static void free_plan(plan_memory *m) {
  free(m->plan.count), free(m->plan.begin), free(m->plan.next);
  free(m->plan.row_token), free(m->plan.row_choice), free(m->plan.row_of);
}

static void check_guards(const tigon_moe_routing *r, const plan_memory *m) {
  const int64_t routes = r->tokens * r->choices, poison = 0x5a5a5a5a5a5a5a5a;
  for (int i = 0; i < GUARD; i++) {
    assert_int_equal(m->plan.count[r->experts + i], poison);
    assert_int_equal(m->plan.begin[r->experts + i], poison);
    assert_int_equal(m->plan.next[r->experts + i], poison);
    assert_int_equal(m->plan.row_token[m->bound + i], 0x5a5a5a5a);
    assert_int_equal(m->plan.row_choice[m->bound + i], 0x5a);
    assert_int_equal(m->plan.row_of[routes + i], poison);
  }
}

static bool valid(const tigon_moe_routing *r, int64_t t, int64_t j) {
  const int64_t id = tigon_moe_id(r, t, j);
  return id >= 0 && id < r->experts && t * r->choices + j < r->end;
}

/* Counts are exact, segments are aligned, adjacent and within the bound. */
static void check_segments(const tigon_moe_routing *r, const plan_memory *m, int64_t align) {
  int64_t *counted = calloc((size_t)r->experts, sizeof *counted);
  for (int64_t t = 0; t < r->tokens; t++)
    for (int64_t j = 0; j < r->choices; j++)
      if (valid(r, t, j)) counted[tigon_moe_id(r, t, j)]++;
  int64_t end = 0;
  for (int64_t e = 0; e < r->experts; e++) {
    assert_int_equal(m->plan.count[e], counted[e]);
    assert_int_equal(m->plan.begin[e], end);
    assert_int_equal(m->plan.begin[e] % align, 0);
    end += (counted[e] + align - 1) / align * align;
  }
  assert_int_equal(m->plan.rows, end);
  assert_true(end <= m->bound);
  free(counted);
}

/* Row and route tables are inverse, rows of an expert rise with the route (stable), padding is marked. */
static void check_tables(const tigon_moe_routing *r, const plan_memory *m, int64_t align) {
  for (int64_t t = 0; t < r->tokens; t++)
    for (int64_t j = 0; j < r->choices; j++) {
      const int64_t id = tigon_moe_id(r, t, j), row = m->plan.row_of[t * r->choices + j];
      if (!valid(r, t, j)) {
        assert_int_equal(row, -1);
        continue;
      }
      assert_true(row >= m->plan.begin[id] && row < m->plan.begin[id] + m->plan.count[id]);
      assert_int_equal(m->plan.row_token[row], t);
      assert_int_equal(m->plan.row_choice[row], j);
    }
  for (int64_t e = 0; e < r->experts; e++) {
    const int64_t begin = m->plan.begin[e], count = m->plan.count[e];
    for (int64_t i = 1; i < count; i++) {
      const int64_t before = m->plan.row_token[begin + i - 1] * r->choices + m->plan.row_choice[begin + i - 1];
      assert_true(before < m->plan.row_token[begin + i] * r->choices + m->plan.row_choice[begin + i]);
    }
    for (int64_t i = count; i < (count + align - 1) / align * align; i++) {
      assert_int_equal(m->plan.row_token[begin + i], -1);
      assert_int_equal(m->plan.row_choice[begin + i], 0);
    }
  }
}

static void check_first_bad(const tigon_moe_routing *r) {
  int64_t expected = -1;
  for (int64_t route = r->tokens * r->choices - 1; route >= 0; route--)
    if (tigon_moe_id(r, route / r->choices, route % r->choices) >= r->experts) expected = route;
  assert_int_equal(tigon_moe_plan_first_bad(r), expected);
}

/* The end for every limit: exactly `limit` valid routes stand before it, and it is one itself. */
static void check_end(const tigon_moe_routing *r) {
  const int64_t routes = r->tokens * r->choices;
  tigon_moe_routing whole = *r;
  whole.end = routes;
  int64_t valid_routes = 0, needed, step = routes / 50 + 1;
  for (int64_t route = 0; route < routes; route++)
    valid_routes += tigon_moe_expert(&whole, route / r->choices, route % r->choices) >= 0;
  for (int64_t limit = 0; limit <= routes + 1; limit += step) {
    const int64_t end = tigon_moe_plan_end(&whole, limit, &needed);
    assert_int_equal(needed, valid_routes);
    int64_t before = 0;
    for (int64_t route = 0; route < end; route++)
      before += tigon_moe_expert(&whole, route / r->choices, route % r->choices) >= 0;
    assert_int_equal(before, limit < valid_routes ? limit : valid_routes);
    if (limit >= valid_routes) assert_int_equal(end, routes);
    if (limit < valid_routes) assert_true(tigon_moe_expert(&whole, end / r->choices, end % r->choices) >= 0);
  }
}

/* Counted and placed in blocks of tokens, the last block first. */
static void check_blocks(test_rng *rng, const tigon_moe_routing *r, const plan_memory *whole, int64_t align) {
  enum { BLOCKS = 5 };
  plan_memory m = make_plan(r, align);
  int64_t *counts = calloc((size_t)(BLOCKS * r->experts), sizeof *counts), border[BLOCKS + 1] = {0};
  for (int b = 1; b < BLOCKS; b++) border[b] = test_random_range(rng, border[b - 1], r->tokens);
  border[BLOCKS] = r->tokens;
  for (int b = 0; b < BLOCKS; b++) tigon_moe_plan_count(r, border[b], border[b + 1], counts + b * r->experts);
  for (int64_t e = 0; e < r->experts; e++) {
    m.plan.count[e] = 0;
    for (int b = 0; b < BLOCKS; b++) m.plan.count[e] += counts[b * r->experts + e];
  }
  m.plan.rows = tigon_moe_plan_segments(m.plan.count, r->experts, align, m.plan.begin);
  for (int64_t e = 0; e < r->experts; e++) {
    int64_t next = m.plan.begin[e];
    for (int b = 0; b < BLOCKS; b++) {
      const int64_t count = counts[b * r->experts + e];
      counts[b * r->experts + e] = next;
      next += count;
    }
    tigon_moe_plan_pad(e, align, &m.plan);
  }
  for (int b = BLOCKS - 1; b >= 0; b--)
    tigon_moe_plan_place(r, border[b], border[b + 1], counts + b * r->experts, &m.plan);
  assert_int_equal(m.plan.rows, whole->plan.rows);
  assert_memory_equal(m.plan.row_token, whole->plan.row_token, (size_t)m.bound * sizeof(int32_t));
  assert_memory_equal(m.plan.row_choice, whole->plan.row_choice, (size_t)m.bound);
  assert_memory_equal(m.plan.row_of, whole->plan.row_of, (size_t)(r->tokens * r->choices) * sizeof(int64_t));
  free(counts);
  free_plan(&m);
}

static void check_routing(test_rng *rng, pattern p, int64_t tokens, int64_t choices, int64_t experts) {
  routing_data d = make_routing(rng, p, tokens, choices, experts);
  for (int wide = 0; wide < 2; wide++) {
    const int64_t align = wide ? 64 : 1;
    plan_memory m = make_plan(&d.routing, align);
    tigon_moe_plan_build(&d.routing, align, &m.plan);
    check_guards(&d.routing, &m);
    check_segments(&d.routing, &m, align);
    check_tables(&d.routing, &m, align);
    check_blocks(rng, &d.routing, &m, align);
    free_plan(&m);
  }
  check_first_bad(&d.routing);
  check_end(&d.routing);
  test_count_case();
  free(d.wide), free(d.narrow);
}

static void test_random_routings(void **state) {
  (void)state;
  test_rng rng = {2024};
  for (int i = 0; i < 6000; i++) {
    const int64_t experts = test_random(&rng) % 8 ? test_random_range(&rng, 1, 40) : test_random_range(&rng, 1, 300);
    check_routing(&rng, (pattern)(i % PATTERNS), test_random_range(&rng, 0, 40), test_random_range(&rng, 1, 8),
                  experts);
  }
}

static void test_extremes(void **state) {
  (void)state;
  test_rng rng = {7};
  for (int p = 0; p < PATTERNS; p++) {
    check_routing(&rng, (pattern)p, 0, 1, 1);
    check_routing(&rng, (pattern)p, 0, 32, 4096);
    check_routing(&rng, (pattern)p, 1, 1, 1);
    check_routing(&rng, (pattern)p, 1, 32, 4096);
    check_routing(&rng, (pattern)p, 200, 32, 4096);
    check_routing(&rng, (pattern)p, 5000, 2, 8);
    check_routing(&rng, (pattern)p, 65, 32, 1);
  }
}

static void test_row_bound(void **state) {
  (void)state;
  assert_int_equal(tigon_moe_row_bound(0, 4096, 64), 0);
  assert_int_equal(tigon_moe_row_bound(1, 4096, 64), 64);
  assert_int_equal(tigon_moe_row_bound(10, 4096, 64), 640);
  assert_int_equal(tigon_moe_row_bound(100000, 8, 64), 100000 + 8 * 63);
  assert_int_equal(tigon_moe_row_bound(100000, 8, 1), 100000);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_row_bound), cmocka_unit_test(test_extremes),
                                     cmocka_unit_test(test_random_routings)};
  return test_gate_report("moe_plan", cmocka_run_group_tests(tests, NULL, NULL));
}
