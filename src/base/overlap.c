#include "base/overlap.h"

/* A view's memory: runs of contiguous bytes, repeated in up to five dimensions, the largest step first. */
typedef struct layout {
  uintptr_t first; /* lowest address */
  int dims;
  int64_t count[5], step[5]; /* steps in bytes */
  int64_t width[6];          /* bytes from the first to the last of what dimensions i.. span; [dims]: a run's */
} layout;

static uint64_t magnitude(int64_t stride) { return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride; }

static void insert(layout *l, int64_t count, int64_t step) {
  int at = l->dims++;
  for (; at > 0 && l->step[at - 1] < step; at--) {
    l->step[at] = l->step[at - 1];
    l->count[at] = l->count[at - 1];
  }
  l->step[at] = step;
  l->count[at] = count;
}

/* False where the view is larger than any memory. */
static bool describe(const tigon_view *view, layout *l) {
  const int64_t bytes = tigon_kind_bytes(view->kind);
  const uint64_t most = UINT64_C(1) << 58;
  *l = (layout){.first = (uintptr_t)view->data};
  for (int i = 0; i < view->ndim; i++) {
    const int64_t count = view->shape[i];
    const uint64_t stride = magnitude(view->stride[i]);
    uint64_t span;
    if (count == 1 || stride == 0) continue;
    if (__builtin_mul_overflow(stride, (uint64_t)((count - 1) * bytes), &span) || span > most) return false;
    if (view->stride[i] < 0) l->first -= span;
    insert(l, count, (int64_t)stride * bytes);
  }
  int64_t run = bytes;
  for (; l->dims > 0 && l->step[l->dims - 1] <= run; l->dims--)
    run += (l->count[l->dims - 1] - 1) * l->step[l->dims - 1];
  l->width[l->dims] = run;
  for (int i = l->dims - 1; i >= 0; i--) l->width[i] = l->width[i + 1] + (l->count[i] - 1) * l->step[i];
  return true;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Dimensions i.. of a and j.. of b, b starting `distance` bytes after a. */
static bool meet(const layout *a, int i, const layout *b, int j, int64_t distance, int *budget) {
  if (distance >= a->width[i] || distance <= -b->width[j]) return false;
  if (i == a->dims && j == b->dims) return true;
  if (--*budget < 0) return false;
  const int64_t a_step = i < a->dims ? a->step[i] : 0, b_step = j < b->dims ? b->step[j] : 0;
  const int64_t step = a_step > b_step ? a_step : b_step;
  const bool a_repeats = a_step == step, b_repeats = b_step == step;
  const int next_i = i + a_repeats, next_j = j + b_repeats;
  /* b's row y and a's row x lie distance + (y - x) step apart: only such rows count as come within each other's
   * width. */
  int64_t low = -floor_div(b->width[next_j] - 1 + distance, step);
  int64_t high = floor_div(a->width[next_i] - 1 - distance, step);
  const int64_t lowest = a_repeats ? 1 - a->count[i] : 0, highest = b_repeats ? b->count[j] - 1 : 0;
  if (low < lowest) low = lowest;
  if (high > highest) high = highest;
  for (int64_t rows = low; rows <= high; rows++) {
    if (meet(a, next_i, b, next_j, distance + rows * step, budget)) return true;
    if (*budget < 0) return false;
  }
  return false;
}

/* The bytes from the view's first to its last, and where the first is; false where they are more than any memory. */
static bool reach(const tigon_view *view, uintptr_t *first, int64_t *length) {
  const int64_t bytes = tigon_kind_bytes(view->kind), most = INT64_C(1) << 58;
  int64_t below = 0, above = bytes;
  for (int i = 0; i < view->ndim; i++) {
    int64_t steps;
    if (__builtin_mul_overflow(view->stride[i], (view->shape[i] - 1) * bytes, &steps) || steps > most || steps < -most)
      return false;
    *(steps < 0 ? &below : &above) += steps;
  }
  *first = (uintptr_t)view->data + (uintptr_t)below;
  *length = above - below;
  return true;
}

/* Most pairs lie apart as a whole. */
static bool lie_apart(const tigon_view *a, const tigon_view *b) {
  uintptr_t first_a, first_b;
  int64_t length_a, length_b;
  if (!reach(a, &first_a, &length_a) || !reach(b, &first_b, &length_b)) return false;
  const int64_t distance = (int64_t)(first_b - first_a);
  return distance >= length_a || distance <= -length_b;
}

bool tigon_overlap(const tigon_view *a, const tigon_view *b) {
  layout of_a, of_b;
  int budget = 256;
  if (lie_apart(a, b)) return false;
  if (!describe(a, &of_a) || !describe(b, &of_b)) return false;
  return meet(&of_a, 0, &of_b, 0, (int64_t)(of_b.first - of_a.first), &budget);
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
  while (b) {
    const uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* Each dimension steps over all that lies within it, as in a compact tensor and in its slices. */
static bool is_nested(const tigon_view *view) {
  uint64_t within = 0;
  for (int i = view->ndim - 1; i >= 0; i--) {
    if (view->shape[i] == 1) continue;
    uint64_t steps;
    if (view->stride[i] <= 0 || (uint64_t)view->stride[i] <= within) return false;
    if (__builtin_mul_overflow((uint64_t)(view->shape[i] - 1), (uint64_t)view->stride[i], &steps)) return false;
    if (__builtin_add_overflow(within, steps, &within)) return false;
  }
  return true;
}

int tigon_overlap_within(const tigon_view *view) {
  if (is_nested(view)) return -1;
  for (int i = 0; i < view->ndim; i++) {
    const uint64_t a = magnitude(view->stride[i]);
    if (view->shape[i] == 1) continue;
    if (a == 0) return i;
    for (int j = i + 1; j < view->ndim; j++) {
      const uint64_t b = magnitude(view->stride[j]), divisor = common_divisor(a, b);
      if (view->shape[j] == 1 || b == 0) continue;
      /* b / divisor steps along i lead where a / divisor steps along j do. */
      if (b / divisor < (uint64_t)view->shape[i] && a / divisor < (uint64_t)view->shape[j]) return i;
    }
  }
  return -1;
}
