/*
 * The scan of backend.h on the CPU, chunkwise. With L tokens in a chunk, i and j their positions in the order of the
 * scan, e = 1 in forward order and 0 reversed:
 *
 *     P[i, j] = inner lambda^(i - j) x_i . y_j               for j <= i, else 0
 *     out_i   = outer (lambda^(i + e) x_i W + sum_j P[i, j] z_j)
 *     W       = lambda^L W + sum_j inner lambda^(L - j - e) y_j z_j^T
 */
#include <math.h>

#include "base/block_gemm.h"
#include "base/vec.h"
#include "lightning_attention/backend.h"

#define INLINE    static inline __attribute__((always_inline))
#define multiply  TIGON_ISA_FN(tigon_block_gemm_run)
#define transpose TIGON_ISA_FN(tigon_block_transpose)

typedef struct unit {
  const scan *s;
  scan_blocks b;
  int64_t sequence, batch, begin, end; /* tokens of the batch row */
  int64_t slot;                        /* of the state tensors; -1: padding */
  int64_t checkpoint, checkpoint_end;  /* rows of the sequence */
  int64_t first_head, heads;           /* value heads */
  int64_t summands;                    /* value heads of one output head */
  int64_t column, columns;             /* of z, W and out */
} unit;

/* A chunk: positions first .. first + length of the scan. */
typedef struct span {
  int64_t first, length;
  bool last;
  int64_t checkpoint; /* the row that takes the state after it; -1: none */
} span;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void find_unit(unit *u, const scan *s, int64_t index) {
  const int64_t blocks = (s->dz + s->width - 1) / s->width, heads = s->heads * s->group;
  const int64_t bundles = (heads + s->bundle - 1) / s->bundle;
  u->summands = s->summed ? s->group : 1;
  u->column = index % blocks * s->width;
  u->columns = least(s->dz - u->column, s->width);
  index /= blocks;
  u->first_head = index % bundles * s->bundle;
  u->heads = least(heads - u->first_head, s->bundle);
  u->sequence = index / bundles;
  u->batch = s->bounds ? 0 : u->sequence;
  int64_t length;
  lightning_scan_tokens(s, u->sequence, &u->begin, &length);
  u->end = u->begin + length;
  u->slot = lightning_slot(&s->slots, u->sequence);
  if (tigon_present(&s->checkpoints)) lightning_checkpoint_rows(s, u->sequence, &u->checkpoint, &u->checkpoint_end);
}

/* Where the rows of a chunk stand: the first one, and the elements from one to the next. */
static char *chunk_rows(const unit *u, const tigon_view *view, int64_t head, int64_t position, int64_t *stride) {
  const int64_t token = u->s->reversed ? u->end - 1 - position : u->begin + position;
  *stride = u->s->reversed ? -view->stride[1] : view->stride[1];
  const int64_t at = u->batch * view->stride[0] + token * view->stride[1] + head * view->stride[2];
  return view->data + at * tigon_kind_bytes(view->kind);
}

static char *value_head_rows(const unit *u, const tigon_view *view, int64_t value_head, int64_t position,
                             int64_t *stride) {
  const int64_t head = value_head / (u->s->heads * u->s->group / view->shape[2]);
  return chunk_rows(u, view, head, position, stride);
}

static float *head_powers(const unit *u, int64_t r) { return u->b.heads + r * u->b.head_stride; }
static float *head_pair_weights(const unit *u, int64_t r) { return head_powers(u, r) + POWERS; }
static float *state_block(const unit *u, int64_t r) { return head_pair_weights(u, r) + PAIR_WEIGHTS; }

/* lambda^n comes from exp(-s n) for each n: no overflow, no drift. */
static void fill_powers(const unit *u, int64_t r, int64_t length) {
  const scan *s = u->s;
  const double decay = (double)lightning_decay(&s->decay, u->first_head + r, s->heads * s->group);
  float *powers = head_powers(u, r), *pair_weights = head_pair_weights(u, r);
  memset(powers, 0, sizeof(float) * POWERS);
  memset(pair_weights, 0, sizeof(float) * PAIR_WEIGHTS);
  for (int64_t n = 0; n <= length && n <= CHUNK; n++) {
    const double power = n == 0 ? 1.0 : exp(-decay * (double)n);
    powers[n] = (float)power;
    if (n < CHUNK) pair_weights[CHUNK + n] = (float)((double)s->inner * power);
  }
}

static float *state_rows(const unit *u, const tigon_view *view, int64_t slot, int64_t r) {
  const int64_t at = slot * view->stride[0] + (u->first_head + r) * view->stride[1];
  return (float *)(void *)view->data + at;
}

static void load_state(const unit *u, int64_t r) {
  const scan *s = u->s;
  const int64_t stride = s->state_in.stride[2];
  const float *from = state_rows(u, &s->state_in, u->slot, r);
  float *to = state_block(u, r);
  if (s->state_transposed) {
    transpose(to, u->b.z_stride, from + u->column * stride, TIGON_F32, stride, u->columns, s->dx);
    return;
  }
  for (int64_t i = 0; i < s->dx; i++)
    memcpy(to + i * u->b.z_stride, from + i * stride + u->column, sizeof(float) * (size_t)u->columns);
}

static void zero_state(const unit *u, int64_t r) {
  float *state = state_block(u, r);
  for (int64_t i = 0; i < u->s->dx; i++) memset(state + i * u->b.z_stride, 0, sizeof(float) * (size_t)u->columns);
}

static void store_state(const unit *u, const tigon_view *view, int64_t slot, int64_t r) {
  const scan *s = u->s;
  const int64_t stride = view->stride[2];
  float *to = state_rows(u, view, slot, r), *from = state_block(u, r);
  if (s->state_transposed) {
    transpose(to + u->column * stride, stride, from, TIGON_F32, u->b.z_stride, s->dx, u->columns);
    return;
  }
  for (int64_t i = 0; i < s->dx; i++)
    memcpy(to + i * stride + u->column, from + i * u->b.z_stride, sizeof(float) * (size_t)u->columns);
}

/* to = weight * from; whether all is finite. */
INLINE bool load_weighted(float *to, const char *from, tigon_kind kind, int64_t n, float weight) {
  vi finite = (vi)(vf_set(0.0f) == vf_set(0.0f));
  int64_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) {
    const vf v = vf_load_as(from, kind, i);
    finite &= (v - v == vf_set(0.0f));
    vf_store(to + i, vf_set(weight) * v);
  }
  bool all = true;
  for (int lane = 0; lane < VF_LANES; lane++) all &= finite[lane] != 0;
  for (; i < n; i++) {
    const float v = tigon_load(from, kind, i);
    all &= isfinite(v) != 0;
    to[i] = weight * v;
  }
  return all;
}

/* Rows of a chunk to fp32; row i times *weight-- (NULL: 1). Returns whether all elements are finite. */
static bool load_rows(float *to, int64_t to_stride, const char *from, tigon_kind kind, int64_t from_stride,
                      int64_t rows, int64_t columns, const float *weight, float factor) {
  bool finite = true;
  for (int64_t i = 0; i < rows; i++, to += to_stride, from += from_stride * tigon_kind_bytes(kind)) {
    const float w = weight ? factor * weight[-i] : 1.0f;
    switch (kind) {
    case TIGON_BF16:
      finite &= load_weighted(to, from, TIGON_BF16, columns, w);
      break;
    case TIGON_F16:
      finite &= load_weighted(to, from, TIGON_F16, columns, w);
      break;
    default:
      finite &= load_weighted(to, from, TIGON_F32, columns, w);
      break;
    }
  }
  return finite;
}

static void load_transposed(const unit *u, float *to, const tigon_view *view, int64_t r, span chunk) {
  int64_t stride;
  const char *from = value_head_rows(u, view, u->first_head + r, chunk.first, &stride);
  transpose(to, TOKEN_STRIDE, from, view->kind, stride, chunk.length, u->s->dx);
}

/* pairs[j][i] = P[i, j]. Selecting, not multiplying by 0, keeps a NaN in token j from tokens before it. */
static void compute_pairs(const unit *u, int64_t r, span chunk, tigon_block_ahead *ahead) {
  const scan_blocks *b = &u->b;
  const tigon_block_gemm product = {.m = chunk.length,
                                    .n = chunk.length,
                                    .first = {b->y, b->x, TOKEN_STRIDE, TOKEN_STRIDE, u->s->dx},
                                    .shape = TIGON_BLOCK_UPPER,
                                    .c = b->pairs,
                                    .ldc = TOKEN_STRIDE,
                                    .ahead = ahead};
  multiply(&product);
  const float *weights = head_pair_weights(u, r) + CHUNK;
  vi lane;
  for (int i = 0; i < VF_LANES; i++) lane[i] = i;
  for (int64_t j = 0; j < chunk.length; j++)
    for (int64_t i = 0; i < CHUNK; i += VF_LANES) {
      float *at = b->pairs + j * TOKEN_STRIDE + i;
      vf_store(at, vf_select(lane + (int32_t)i >= (vi){0} + (int32_t)j, vf_load(at) * vf_load(weights + i - j),
                             vf_set(0.0f)));
    }
}

/* out (+)= lambda^(i + e) x W + P z */
static void compute_out(const unit *u, int64_t r, span chunk, bool with_state, bool z_finite,
                        tigon_block_ahead *ahead) {
  const scan_blocks *b = &u->b;
  const float *powers = head_powers(u, r);
  const tigon_block_gemm product = {
      .m = chunk.length,
      .n = u->columns,
      .first = {b->x, state_block(u, r), TOKEN_STRIDE, b->z_stride, with_state ? u->s->dx : 0},
      .row_scale = with_state ? powers + (u->s->reversed ? 0 : 1) : NULL,
      .second = {b->pairs, b->z, TOKEN_STRIDE, b->z_stride, chunk.length},
      .shape = z_finite ? TIGON_BLOCK_CAUSAL : TIGON_BLOCK_CAUSAL_EXACT,
      .accumulate = r % u->summands > 0,
      .c_scale = 1.0f,
      .c = b->out,
      .ldc = b->z_stride,
      .ahead = ahead};
  multiply(&product);
}

static void update_state(const unit *u, int64_t r, span chunk, bool with_state, tigon_block_ahead *ahead) {
  const scan_blocks *b = &u->b;
  const float *powers = head_powers(u, r);
  int64_t stride;
  const char *from = value_head_rows(u, &u->s->y, u->first_head + r, chunk.first, &stride);
  load_rows(b->y_weighted, b->x_stride, from, u->s->y.kind, stride, chunk.length, u->s->dx,
            powers + chunk.length - (u->s->reversed ? 0 : 1), u->s->inner);
  const tigon_block_gemm product = {.m = u->s->dx,
                                    .n = u->columns,
                                    .first = {b->y_weighted, b->z, b->x_stride, b->z_stride, chunk.length},
                                    .accumulate = with_state,
                                    .c_scale = powers[chunk.length],
                                    .c = state_block(u, r),
                                    .ldc = b->z_stride,
                                    .ahead = ahead};
  multiply(&product);
}

INLINE void store_scaled(void *to, tigon_kind kind, const float *from, int64_t n, float scale) {
  int64_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) vf_store_as(to, kind, i, vf_set(scale) * vf_load(from + i));
  for (; i < n; i++) tigon_store(to, kind, i, scale * from[i]);
}

static char *out_rows(const unit *u, int64_t r, int64_t position, int64_t *stride) {
  const scan *s = u->s;
  return chunk_rows(u, &s->out, (u->first_head + r) / u->summands, position, stride) +
         u->column * tigon_kind_bytes(s->out.kind);
}

static void store_out(const unit *u, int64_t r, span chunk) {
  const scan *s = u->s;
  int64_t stride;
  char *to = out_rows(u, r, chunk.first, &stride);
  const float *from = u->b.out;
  for (int64_t i = 0; i < chunk.length; i++, from += u->b.z_stride, to += stride * tigon_kind_bytes(s->out.kind))
    switch (s->out.kind) {
    case TIGON_BF16:
      store_scaled(to, TIGON_BF16, from, u->columns, s->outer);
      break;
    case TIGON_F16:
      store_scaled(to, TIGON_F16, from, u->columns, s->outer);
      break;
    default:
      store_scaled(to, TIGON_F32, from, u->columns, s->outer);
      break;
    }
}

static void add_area(tigon_block_ahead *ahead, const tigon_view *view, const char *row, int64_t stride, int64_t columns,
                     int64_t rows) {
  const int64_t bytes = tigon_kind_bytes(view->kind);
  if (rows == 0) return;
  ahead->area[ahead->areas].row = row;
  ahead->area[ahead->areas].column = 0;
  ahead->area[ahead->areas].stride = stride * bytes;
  ahead->area[ahead->areas].row_bytes = columns * bytes;
  ahead->area[ahead->areas++].rows = rows;
}

/* What follows head r of a chunk: its output rows, and the rows of the next head or else of the next chunk. */
static tigon_block_ahead rows_ahead(const unit *u, int64_t r, span chunk) {
  const scan *s = u->s;
  tigon_block_ahead ahead = {.areas = 0};
  int64_t stride;
  if (tigon_present(&s->out) && r % u->summands == 0) {
    const char *row = out_rows(u, r, chunk.first, &stride);
    add_area(&ahead, &s->out, row, stride, u->columns, chunk.length);
  }
  const bool next_chunk = r + 1 == u->heads;
  if (next_chunk && chunk.last) return ahead;
  const int64_t first = next_chunk ? chunk.first + CHUNK : chunk.first;
  const int64_t head = u->first_head + (next_chunk ? 0 : r + 1);
  const int64_t rows = least(u->end - u->begin - first, CHUNK);
  const char *row;
  if (tigon_present(&s->out)) {
    row = value_head_rows(u, &s->x, head, first, &stride);
    add_area(&ahead, &s->x, row, stride, s->dx, rows);
  }
  row = value_head_rows(u, &s->y, head, first, &stride);
  add_area(&ahead, &s->y, row, stride, s->dx, rows);
  if (!next_chunk && (r + 1) % u->summands != 0) return ahead;
  row = value_head_rows(u, &s->z, head, first, &stride) + u->column * tigon_kind_bytes(s->z.kind);
  add_area(&ahead, &s->z, row, stride, u->columns, rows);
  return ahead;
}

static void scan_chunk(const unit *u, span chunk, bool with_state) {
  const scan *s = u->s;
  const bool wants_out = tigon_present(&s->out);
  const bool wants_state = !chunk.last || tigon_present(&s->state_out) || chunk.checkpoint >= 0;
  bool z_finite = true;
  for (int64_t r = 0; r < u->heads; r++) {
    tigon_block_ahead ahead = rows_ahead(u, r, chunk);
    if (r % u->summands == 0) { /* summands have one z, that of their query head */
      int64_t stride;
      const char *from = value_head_rows(u, &s->z, u->first_head + r, chunk.first, &stride);
      z_finite = load_rows(u->b.z, u->b.z_stride, from + u->column * tigon_kind_bytes(s->z.kind), s->z.kind, stride,
                           chunk.length, u->columns, NULL, 1.0f);
    }
    if (wants_out) {
      load_transposed(u, u->b.x, &s->x, r, chunk);
      load_transposed(u, u->b.y, &s->y, r, chunk);
      compute_pairs(u, r, chunk, &ahead);
      compute_out(u, r, chunk, with_state, z_finite, &ahead);
    }
    if (wants_state) update_state(u, r, chunk, with_state, &ahead);
    if (chunk.checkpoint >= 0) store_state(u, &s->checkpoints, chunk.checkpoint, r);
    if (wants_out && (r + 1) % u->summands == 0) store_out(u, r, chunk);
  }
}

static span chunk_from(const unit *u, int64_t first) {
  const int64_t every = u->s->checkpoint_every, length = least(u->end - u->begin - first, CHUNK), next = first + length;
  span chunk = {first, length, next == u->end - u->begin, -1};
  if (!tigon_present(&u->s->checkpoints) || next % every != 0) return chunk;
  const int64_t row = u->checkpoint + next / every - 1;
  if (row < u->checkpoint_end) chunk.checkpoint = row;
  return chunk;
}

static void zero_out(const unit *u) {
  int64_t stride;
  for (int64_t r = 0; r < u->heads && tigon_present(&u->s->out); r += u->summands) {
    char *to = out_rows(u, r, 0, &stride);
    const int64_t bytes = tigon_kind_bytes(u->s->out.kind);
    for (int64_t i = 0; i < u->end - u->begin; i++) memset(to + i * stride * bytes, 0, (size_t)(u->columns * bytes));
  }
}

void TIGON_ISA_FN(tigon_lightning_scan_unit)(void *context, int64_t chunk, int slot) {
  const scan *s = context;
  unit u = {.s = s};
  lightning_scan_carve(s, slot, &u.b);
  find_unit(&u, s, chunk);
  if (u.slot < 0) {
    zero_out(&u);
    return;
  }
  const int64_t length = u.end - u.begin;
  bool with_state = tigon_present(&s->state_in) && lightning_has_initial_state(&s->slots, u.sequence);
  for (int64_t r = 0; r < u.heads; r++) {
    fill_powers(&u, r, length);
    if (with_state) load_state(&u, r);
  }
  for (int64_t first = 0; first < length; first += CHUNK) {
    scan_chunk(&u, chunk_from(&u, first), with_state);
    with_state = true;
  }
  for (int64_t r = 0; r < u.heads && tigon_present(&s->state_out); r++) {
    if (!with_state) zero_state(&u, r);
    store_state(&u, &s->state_out, u.slot, r);
  }
}
