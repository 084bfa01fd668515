/* How a scan is cut into units, and what scratch a unit needs. */
#include "base/integer.h"
#include "lightning_attention/backend.h"

int64_t lightning_scan_units(const scan *s) {
  return s->sequences * tigon_ceil_div(s->heads * s->group, s->bundle) * tigon_ceil_div(s->dz, s->width);
}

enum {
  NARROWEST = TIGON_BLOCK_N,
  HEAD_BUDGET = 128 * 1024 /* floats for the heads of a unit: they should stay in a core's cache */
};

static int64_t widest(const scan *s) { return tigon_round_up(s->dz, NARROWEST); }
static int64_t smallest_bundle(const scan *s) { return s->summed ? s->group : 1; }

/* Floats that a unit keeps for each value head. */
static int64_t head_floats(const scan *s, int64_t width) {
  return (s->dx + TIGON_BLOCK_M) * tigon_block_stride(width) + POWERS + PAIR_WEIGHTS;
}

/* Each block of columns computes P anew (a sixth of the work at width 128), so blocks are as wide as possible: unless
 * there are too few units to share, or the states of a unit get too large. */
static void choose_width(scan *s) {
  enum { ENOUGH_UNITS = 8 };
  s->bundle = smallest_bundle(s);
  s->width = widest(s);
  while (s->width > NARROWEST &&
         (lightning_scan_units(s) < ENOUGH_UNITS || s->bundle * head_floats(s, s->width) > HEAD_BUDGET))
    s->width = tigon_ceil_div(s->width / NARROWEST, 2) * NARROWEST;
}

/* A token's heads stand side by side in memory. A unit that takes several along meets each page once for all of them,
 * where one by one each head would sweep over all pages. */
static void choose_bundle(scan *s, int threads) {
  enum { UNITS_PER_THREAD = 2 };
  for (;;) {
    scan larger = *s;
    larger.bundle *= 2;
    if (larger.bundle > s->heads * s->group || larger.bundle * head_floats(s, s->width) > HEAD_BUDGET) return;
    if (lightning_scan_units(&larger) < (int64_t)UNITS_PER_THREAD * threads) return;
    *s = larger;
  }
}

void lightning_scan_cut(scan *s, int threads) {
  choose_width(s);
  choose_bundle(s, threads);
}

static uint64_t carve(const scan *s, float *base, int64_t heads_floats, scan_blocks *b) {
  b->x_stride = tigon_block_stride(s->dx);
  b->z_stride = tigon_block_stride(s->width);
  struct {
    float **block;
    int64_t floats;
  } const list[] = {
      {&b->x, s->dx * TOKEN_STRIDE},
      {&b->y, s->dx * TOKEN_STRIDE},
      {&b->y_weighted, CHUNK * b->x_stride},
      {&b->z, CHUNK * b->z_stride},
      {&b->pairs, TOKEN_STRIDE * TOKEN_STRIDE},
      {&b->out, TOKEN_STRIDE * b->z_stride},
      {&b->heads, heads_floats},
  };
  uint64_t floats = 0;
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    *list[i].block = base ? base + floats : NULL;
    floats += (uint64_t)tigon_round_up(list[i].floats, 64);
  }
  return floats * sizeof(float);
}

/* For any number of sequences and threads, so that the workspace never shrinks when there are more. */
uint64_t lightning_scan_scratch(const scan *s) {
  scan largest = *s;
  largest.width = widest(s);
  const int64_t all = s->heads * s->group * head_floats(s, largest.width);
  const int64_t least = smallest_bundle(s) * head_floats(s, NARROWEST);
  const int64_t budget = least > HEAD_BUDGET ? least : HEAD_BUDGET;
  return carve(&largest, NULL, all < budget ? all : budget, &(scan_blocks){0});
}

void lightning_scan_carve(const scan *s, int slot, scan_blocks *b) {
  float *base = (float *)(void *)(s->scratch + (uint64_t)slot * s->scratch_bytes);
  b->head_stride = head_floats(s, s->width);
  (void)carve(s, base, s->bundle * b->head_stride, b);
}

int64_t lightning_slot(const slots *s, int64_t n) {
  const tigon_view *indices = &s->state_indices;
  if (!tigon_present(indices)) return n;
  const int64_t slot = tigon_load_index(indices->data, indices->kind, n * indices->stride[0]);
  return slot >= 0 && slot < s->count ? slot : -1;
}

bool lightning_has_initial_state(const slots *s, int64_t n) {
  const tigon_view *flags = &s->has_initial_state;
  return !tigon_present(flags) || tigon_load_flag(flags->data, flags->kind, n * flags->stride[0]);
}

void lightning_scan_tokens(const scan *s, int64_t n, int64_t *begin, int64_t *length) {
  *begin = s->bounds ? s->bounds[n] : 0;
  *length = s->bounds ? s->bounds[n + 1] - *begin : s->tokens;
  if (!tigon_present(&s->lengths)) return;
  const int64_t wanted = tigon_load_index(s->lengths.data, s->lengths.kind, n * s->lengths.stride[0]);
  if (wanted < *length) *length = wanted > 0 ? wanted : 0;
}

void lightning_checkpoint_rows(const scan *s, int64_t n, int64_t *begin, int64_t *end) {
  const int64_t each = s->tokens / s->checkpoint_every, rows = s->checkpoints.shape[0];
  *begin = s->checkpoint_begin ? s->checkpoint_begin[n] : n * each;
  *end = s->checkpoint_begin ? s->checkpoint_begin[n + 1] : *begin + each;
  if (*end > rows) *end = rows;
}

float lightning_decay(const tigon_view *decay, int64_t value_head, int64_t value_heads) {
  const int64_t head = value_head / (value_heads / decay->shape[0]);
  const float s = ((const float *)(const void *)decay->data)[head * decay->stride[0]];
  return s >= 0 ? s : 0.0f;
}

int64_t lightning_decode_units(const decode *d) {
  return d->v.shape[0] * d->v.shape[1] * tigon_ceil_div(d->v.shape[2], d->rows);
}
