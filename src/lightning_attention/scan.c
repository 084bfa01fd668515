/* How a scan is cut and what scratch it needs: shapes only. */
#include "lightning_attention/backend.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t value_heads_of_unit(const scan *s) { return s->summed ? s->group : 1; }

int64_t lightning_scan_units(const scan *s) {
  const int64_t heads = s->summed ? s->heads : s->heads * s->group;
  return s->sequences * heads * ceil_div(s->dz, s->width);
}

/* Each block of columns computes P anew (a sixth of the work at width 128), so blocks are as wide as possible: unless
 * there are too few units to share, or the states of a unit would not stay in a core's cache. */
void lightning_scan_choose_width(scan *s) {
  enum { ENOUGH_UNITS = 8, STATE_FLOATS = 128 * 1024, NARROWEST = TIGON_BLOCK_N };
  s->width = ceil_div(s->dz, NARROWEST) * NARROWEST;
  while (s->width > NARROWEST &&
         (lightning_scan_units(s) < ENOUGH_UNITS || value_heads_of_unit(s) * s->dx * s->width > STATE_FLOATS))
    s->width = ceil_div(s->width / NARROWEST, 2) * NARROWEST;
}

uint64_t lightning_scan_carve(const scan *s, void *base, scan_blocks *b) {
  const int64_t states = value_heads_of_unit(s);
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
      {&b->states, states * (s->dx + TIGON_BLOCK_M) * b->z_stride},
      {&b->powers, states * (TOKEN_STRIDE + 16)},
      {&b->pair_weights, states * PAIR_WEIGHTS},
  };
  uint64_t floats = 0;
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    *list[i].block = base ? (float *)base + floats : NULL;
    floats += (uint64_t)ceil_div(list[i].floats, 64) * 64;
  }
  return floats * sizeof(float);
}

float lightning_decay(const tigon_view *decay, int64_t value_head, int64_t value_heads) {
  const int64_t head = value_head / (value_heads / decay->shape[0]);
  const float s = ((const float *)(const void *)decay->data)[head * decay->stride[0]];
  return s >= 0 ? s : 0.0f;
}

int64_t lightning_decode_units(const decode *d) {
  return d->v.shape[0] * d->v.shape[1] * ceil_div(d->v.shape[2], d->rows);
}
