/* Overlap of views: against a search through all their bytes, and the layouts that operations meet. */
#include "base/overlap.h"
#include "tests/support/support.h"

enum { BUFFER = 4096, MOST = 256 };

static unsigned char buffer[BUFFER];

static tigon_view view_of(int64_t at, tigon_kind kind, int ndim, const int64_t *shape, const int64_t *stride) {
  tigon_view view = {.data = (char *)buffer + at, .kind = kind, .ndim = ndim, .shape = {1, 1, 1, 1, 1}};
  for (int i = 0; i < ndim; i++) {
    view.shape[i] = shape[i];
    view.stride[i] = stride[i];
  }
  return view;
}

/* Offsets into the buffer of every element. */
static int64_t offsets_of(const tigon_view *view, int64_t offsets[MOST]) {
  const int64_t count = tigon_elements(view);
  assert_true(count <= MOST);
  for (int64_t i = 0; i < count; i++) {
    int64_t rest = i, at = 0;
    for (int d = 4; d >= 0; d--) {
      at += rest % view->shape[d] * view->stride[d];
      rest /= view->shape[d];
    }
    offsets[i] = view->data - (char *)buffer + at * tigon_kind_bytes(view->kind);
  }
  return count;
}

static bool share(const tigon_view *a, const tigon_view *b) {
  int64_t of_a[MOST], of_b[MOST];
  const int64_t a_count = offsets_of(a, of_a), b_count = offsets_of(b, of_b);
  const int64_t a_bytes = tigon_kind_bytes(a->kind), b_bytes = tigon_kind_bytes(b->kind);
  for (int64_t i = 0; i < a_count; i++)
    for (int64_t j = 0; j < b_count; j++)
      if (of_a[i] < of_b[j] + b_bytes && of_b[j] < of_a[i] + a_bytes) return true;
  return false;
}

static bool repeats(const tigon_view *view) {
  int64_t offsets[MOST];
  const int64_t count = offsets_of(view, offsets);
  for (int64_t i = 0; i < count; i++)
    for (int64_t j = 0; j < i; j++)
      if (offsets[i] == offsets[j]) return true;
  return false;
}

static tigon_view random_view(test_rng *rng) {
  const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_I64};
  const tigon_kind kind = kinds[test_random_range(rng, 0, 2)];
  const int ndim = (int)test_random_range(rng, 1, 4);
  int64_t shape[4], stride[4];
  for (int i = 0; i < ndim; i++) {
    shape[i] = test_random_range(rng, 1, 3);
    stride[i] = test_random_range(rng, -2, 24);
  }
  return view_of(BUFFER / 2 + 8 * test_random_range(rng, -12, 12), kind, ndim, shape, stride);
}

/* Never a false alarm; of what these small layouts share all but little is seen. */
static void test_random_views(void **state) {
  (void)state;
  test_rng rng = {5};
  int shared = 0, missed = 0, apart = 0;
  for (int i = 0; i < 200000; i++) {
    const tigon_view a = random_view(&rng), b = random_view(&rng);
    const bool truth = share(&a, &b), seen = tigon_overlap(&a, &b);
    assert_int_equal(seen, tigon_overlap(&b, &a));
    if (seen && !truth) fail_msg("views %d share nothing, but overlap is seen", i);
    shared += truth;
    apart += !truth;
    missed += truth && !seen;
  }
  print_message("%d views share memory (%d not seen), %d do not\n", shared, missed, apart);
  assert_true(shared > 20000 && apart > 20000);
  assert_int_equal(missed, 0);
}

/* For two dimensions the answer is exact. */
static void test_views_that_meet_themselves(void **state) {
  (void)state;
  test_rng rng = {6};
  int repeating = 0;
  for (int i = 0; i < 100000; i++) {
    const tigon_view view = random_view(&rng);
    const bool truth = repeats(&view), seen = tigon_overlap_within(&view) >= 0;
    if (seen && !truth) fail_msg("no element of view %d stands twice", i);
    if (view.ndim <= 2) assert_int_equal(seen, truth);
    repeating += truth;
  }
  assert_true(repeating > 10000);
  const tigon_view good = view_of(0, TIGON_F32, 2, (int64_t[]){4, 8}, (int64_t[]){8, 1});
  const tigon_view rows = view_of(0, TIGON_F32, 2, (int64_t[]){4, 8}, (int64_t[]){7, 1});
  const tigon_view still = view_of(0, TIGON_F32, 2, (int64_t[]){8, 4}, (int64_t[]){1, 0});
  assert_int_equal(tigon_overlap_within(&good), -1);
  assert_int_equal(tigon_overlap_within(&rows), 0);
  assert_int_equal(tigon_overlap_within(&still), 1);
}

typedef struct pair {
  const char *what;
  bool overlap;
  int64_t a_at, b_at; /* bytes */
  int a_ndim, b_ndim;
  int64_t a_shape[4], a_stride[4], b_shape[4], b_stride[4];
} pair;

/* float32 layouts; sizes past any buffer are only computed with. */
static const pair pairs[] = {
    {"q and k of a fused (T, 3, N, H)", false, 0, 4 * 32, 3, 3, {5, 4, 8}, {96, 8, 1}, {5, 4, 8}, {96, 8, 1}},
    {"q and k of a fused (T, N, 3, H)", false, 0, 4 * 8, 3, 3, {5, 4, 8}, {96, 24, 1}, {5, 4, 8}, {96, 24, 1}},
    {"q and the last 7 columns of q", true, 0, 4, 3, 3, {5, 4, 8}, {96, 24, 1}, {5, 4, 7}, {96, 24, 1}},
    {"k one column too early", true, 0, 4 * 31, 3, 3, {5, 4, 8}, {96, 8, 1}, {5, 4, 8}, {96, 8, 1}},
    {"even and odd elements", false, 0, 4, 1, 1, {50}, {2}, {50}, {2}},
    {"a vector in a matrix", true, 0, 400, 2, 1, {16, 16}, {16, 1}, {16}, {1}},
    {"a vector in the padding between rows", false, 0, 4 * 12, 2, 1, {16, 12}, {16, 1}, {4}, {1}},
    {"a vector that leaves the padding", true, 0, 4 * 12, 2, 1, {16, 12}, {16, 1}, {5}, {1}},
    {"the next row on", true, 0, 64, 2, 2, {16, 16}, {16, 1}, {16, 16}, {16, 1}},
    {"a matrix and its end", false, 0, 1024, 2, 2, {16, 16}, {16, 1}, {16, 16}, {16, 1}},
    {"rows backwards", true, 960, 0, 2, 1, {16, 16}, {-16, 1}, {1}, {1}},
    {"rows backwards, ending before", false, 1024, 0, 2, 1, {16, 16}, {-16, 1}, {16}, {1}},
    {"an expanded row", true, 0, 32, 2, 2, {4, 16}, {0, 1}, {4, 16}, {16, 1}},
    {"the last of 2^38 rows", true, 0, (INT64_C(4096) << 38) - 4096, 2, 1, {INT64_C(1) << 38, 8}, {1024, 1}, {1}, {1}},
    {"past 2^40 bytes, in the padding",
     false,
     0,
     (INT64_C(4096) << 30) + 32,
     2,
     1,
     {INT64_C(1) << 38, 8},
     {1024, 1},
     {4},
     {1}},
    {"strides past any memory", false, 0, 64, 2, 1, {3, 8}, {INT64_MAX, 1}, {8}, {1}},
    {"the most negative stride", false, 0, 64, 2, 1, {2, 8}, {INT64_MIN, 1}, {8}, {1}},
};

static void test_layouts(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    const pair *p = &pairs[i];
    tigon_view a = view_of(0, TIGON_F32, p->a_ndim, p->a_shape, p->a_stride);
    tigon_view b = view_of(0, TIGON_F32, p->b_ndim, p->b_shape, p->b_stride);
    a.data = (char *)((uintptr_t)buffer + (uintptr_t)p->a_at);
    b.data = (char *)((uintptr_t)buffer + (uintptr_t)p->b_at);
    if (tigon_overlap(&a, &b) != p->overlap || tigon_overlap(&b, &a) != p->overlap)
      fail_msg("%s: expected overlap %d", p->what, p->overlap);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_views),
      cmocka_unit_test(test_views_that_meet_themselves),
      cmocka_unit_test(test_layouts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
