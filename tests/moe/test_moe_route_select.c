/* Which experts the router selects, and its z loss, on rows whose answer is known: bias, groups, ties, NaN and
 * infinities. */
#include "tests/moe/route_check.h"

enum { E = 8, K = 4 };

typedef struct selection {
  const char *what;
  double logits[E];
  double bias[E];
  int64_t ids[K];
  int biased, n_group, topk_group, group_top;
} selection;

#define INF INFINITY

/* Scores are sigmoids; logits of 100 and -100 have p = 1 and nearly 0. */
static const selection selections[] = {
    {"the bias alone decides between equal scores",
     {0, 0, 0, 0, 0, 0, 0, 0},
     {.1, .2, .3, .4, .5, .6, .7, .8},
     {7, 6, 5, 4},
     1,
     0,
     0,
     0},
    {"the bias outweighs the score", {1, 0, 0, 0, 0, 0, 0, -9}, {0, 0, 0, 0, 0, 0, 0, 3}, {7, 0, 1, 2}, 1, 0, 0, 0},
    {"ties of biased scores go to the lowest id",
     {0, 0, 0, 0, 0, 0, 0, 0},
     {0, 0, 1, 0, 1, 0, 0, 0},
     {2, 4, 0, 1},
     1,
     0,
     0,
     0},
    {"a NaN bias is never selected",
     {9, 8, 7, 6, 5, 4, 3, 2},
     {NAN, 0, NAN, 0, 0, NAN, 0, 0},
     {1, 3, 4, 6},
     1,
     0,
     0,
     0},
    {"few experts without NaN",
     {1, NAN, 3, 1, 1, 1, 1, NAN},
     {0, 0, 0, NAN, NAN, NAN, NAN, INF},
     {2, 0, -1, -1},
     1,
     0,
     0,
     0},
    {"+Inf comes first, also before a better score",
     {-9, 5, 5, -9, 5, 5, 5, 5},
     {INF, 0, 0, INF, 0, 0, 0, 0},
     {0, 3, 1, 2},
     1,
     0,
     0,
     0},
    {"-Inf comes last, a NaN logit not at all",
     {9, 1, NAN, 9, -1, NAN, NAN, NAN},
     {-INF, 0, INF, -INF, 0, 0, 0, 0},
     {1, 4, 0, 3},
     1,
     0,
     0,
     0},
    {"the best single expert lies outside the best groups",
     {9, -9, 2, 2, 2, 2, -9, -9},
     {0, 0, 0, 0, 0, 0, 0, 0},
     {2, 3, 4, 5},
     1,
     4,
     2,
     0},
    {"without a bias a group is as good as its best", {9, -9, 2, 2, 1, 8, 0, 0}, {0}, {0, 5, 4, 1}, 0, 4, 2, 0},
    {"group_top 2 without a bias sums p", {9, -9, 2, 2, 1, 8, 0, 0}, {0}, {5, 2, 3, 4}, 0, 4, 2, 2},
    {"group_top 1 with a bias", {0, 0, 0, 0, 0, 0, 0, 0}, {1, -9, .4, .4, 0, 0, .9, -9}, {0, 6, 1, 7}, 1, 4, 2, 1},
    {"equal groups: the lowest", {1, 1, 1, 1, 1, 1, 1, 1}, {0}, {0, 1, 2, 3}, 0, 4, 2, 0},
    {"saturated scores do not tie without a bias", {50, 50, 60, 50, 70, 70, 80, 80}, {0}, {6, 7, 4, 5}, 0, 4, 2, 0},
    {"a group of NaN comes last", {NAN, NAN, -50, -60, NAN, NAN, -INF, NAN}, {0}, {2, 3, 6, -1}, 0, 4, 2, 0},
    {"a group with one expert counts it alone", {1, NAN, 0, 0, -1, -1, -2, -2}, {0}, {0, 2, 3, -1}, 0, 4, 2, 2},
    {"+Inf opens its group, whatever else is there",
     {0, 0, 5, 5, 5, 5, 0, 0},
     {INF, -INF, 0, 0, 0, 0, 0, 0},
     {0, 2, 3, 1},
     1,
     4,
     2,
     0},
    {"-Inf closes its group", {5, 5, 0, 0, 1, 1, -9, -9}, {-INF, 0, 0, 0, 0, 0, 0, 0}, {4, 5, 2, 3}, 1, 4, 2, 0},
    {"groups of one expert", {1, 2, 3, 4, 5, 6, 7, 8}, {0}, {7, 6, 5, 4}, 0, 8, 4, 0},
    {"all groups open", {1, 2, 3, 4, 5, 6, 7, 8}, {0}, {7, 6, 5, 4}, 0, 2, 2, 0},
    {"one group", {1, 2, 3, 4, 5, 6, 7, 8}, {0}, {7, 6, 5, 4}, 0, 1, 1, 0},
};

static void test_selections(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof selections / sizeof *selections; n++)
    for (int renormalize = 0; renormalize < 2; renormalize++) {
      const selection *s = &selections[n];
      const route_case c = {
          1, K, E, LOGITS_NORMAL, 0, s->biased ? BIAS_NORMAL : BIAS_NONE, s->n_group, s->topk_group, s->group_top};
      route_problem p;
      route_make(&p, &c, TIGON_F32, TIGON_MOE_SIGMOID, renormalize, 1);
      for (int64_t e = 0; e < E; e++) {
        test_tensor_set(&p.logits, e, s->logits[e]);
        if (s->biased) test_tensor_set(&p.bias, e, s->bias[e]);
      }
      route_check_problem(&p, 1);
      for (int64_t j = 0; j < K; j++)
        if ((int64_t)test_tensor_get(&p.ids, j) != s->ids[j])
          fail_msg("%s: topk_ids[%d]: expected %d, got %d", s->what, (int)j, (int)s->ids[j],
                   (int)test_tensor_get(&p.ids, j));
      route_free(&p);
    }
}

/* Llama 4: the sigmoid of the best logit is the weight, unbiased and without renormalisation. */
static void test_sigmoid_top_one(void **state) {
  (void)state;
  const route_case c = {5, 1, 4, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0};
  route_problem p;
  route_make(&p, &c, TIGON_F32, TIGON_MOE_SIGMOID, 0, 1);
  route_check_problem(&p, 1);
  for (int64_t t = 0; t < 5; t++) {
    const int64_t id = (int64_t)test_tensor_get(&p.ids, t);
    const double logit = test_tensor_get(&p.logits, t * 4 + id);
    for (int64_t e = 0; e < 4; e++) assert_true(test_tensor_get(&p.logits, t * 4 + e) <= logit);
    assert_true(fabs(test_tensor_get(&p.weights, t) - 1 / (1 + exp(-logit))) < 1e-6);
  }
  route_free(&p);
}

/* Weights come from p and not from p + bias, are renormalised first and scaled last. */
static void test_scaled_weights(void **state) {
  (void)state;
  for (int renormalize = 0; renormalize < 2; renormalize++) {
    const route_case c = {6, 3, 12, LOGITS_NORMAL, ROUTE_SCALE, BIAS_NORMAL, 4, 2, 0};
    route_problem p;
    route_make(&p, &c, TIGON_F32, TIGON_MOE_SOFTMAX, renormalize, 1);
    route_check_problem(&p, 1);
    for (int64_t t = 0; t < c.tokens; t++) {
      double sum = 0;
      for (int64_t j = 0; j < c.choices; j++) sum += test_tensor_get(&p.weights, t * c.choices + j);
      if (renormalize) assert_true(fabs(sum - 2.5) < 1e-6);
      if (!renormalize) assert_true(sum < 2.5);
    }
    route_free(&p);
  }
}

/* Rows whose logsumexp is not finite add nothing, NaN logits have no part, and the mean is over all tokens. */
static void test_z_loss(void **state) {
  (void)state;
  const route_case c = {6, 1, 4, LOGITS_NORMAL, ROUTE_Z, BIAS_NONE, 0, 0, 0};
  static const double rows[6][4] = {{2, 2, 2, 2},         {-INF, -INF, 3, -INF},
                                    {INF, 1, 1, 1},       {-INF, -INF, -INF, -INF},
                                    {NAN, NAN, NAN, NAN}, {NAN, 1, NAN, -INF}};
  const double expected = (pow(2 + log(4), 2) + 9 + 1) / 6;
  for (int score = 0; score < 2; score++) {
    route_problem p;
    route_make(&p, &c, TIGON_F32, score, 0, 1);
    for (int64_t i = 0; i < 24; i++) test_tensor_set(&p.logits, i, rows[i / 4][i % 4]);
    test_tensor_fill_value(&p.d_weights, 0);
    test_tensor_fill_value(&p.d_loss, 0);
    test_tensor_fill_value(&p.d_z_loss, 3);
    route_check_problem(&p, 1);
    assert_true(fabs(test_tensor_get(&p.z_loss, 0) - expected) < 1e-6 * expected);
    for (int64_t i = 0; i < 24; i++) {
      const double d = test_tensor_get(&p.d_logits, i);
      const double d_expected = i < 4     ? 3 * 2 * (2 + log(4)) / 4 / 6
                                : i == 6  ? 3 * 2 * 3.0 / 6
                                : i == 21 ? 3 * 2.0 / 6
                                          : 0;
      assert_true(fabs(d - d_expected) < 1e-6);
    }
    route_free(&p);
  }
}

/* Chosen scores of 2^-126 and less, which a bias may bring about: shares of 1 at most, and no NaN from their
 * gradient. */
static void test_tiny_scores(void **state) {
  (void)state;
  const route_case c = {3, 3, 6, LOGITS_NORMAL, ROUTE_Z, BIAS_NORMAL, 0, 0, 0};
  static const double logits[3][6] = {
      {-87, -87.2, -100, 5, 5, 5}, {-100, -100, -100, 5, 5, 5}, {-80, -200, -87, 5, 5, 5}};
  for (int mode = 0; mode < 4; mode++) {
    route_problem p;
    route_make(&p, &c, TIGON_F32, mode / 2, mode % 2, 1);
    for (int64_t i = 0; i < 18; i++) test_tensor_set(&p.logits, i, logits[i / 6][i % 6]);
    for (int64_t e = 0; e < 6; e++) test_tensor_set(&p.bias, e, e < 3 ? 9 : 0);
    p.small = true;
    route_check_problem(&p, 1);
    for (int64_t i = 0; i < 9; i++) assert_true(test_tensor_get(&p.ids, i) < 3 && test_tensor_get(&p.weights, i) <= 1);
    for (int64_t i = 0; i < 18; i++) assert_true(isfinite(test_tensor_get(&p.d_logits, i)));
    route_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_selections), cmocka_unit_test(test_sigmoid_top_one),
                                     cmocka_unit_test(test_scaled_weights), cmocka_unit_test(test_z_loss),
                                     cmocka_unit_test(test_tiny_scores)};
  return test_gate_report("moe_route_select", cmocka_run_group_tests(tests, NULL, NULL));
}
