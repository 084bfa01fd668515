/*
 * Passes of the expert MLP over rows: the activation and its gradient, and the sums over a token's routes. A row is the
 * work of one thread, and sums run in an order that depends on shapes alone.
 */
#include "base/vec.h"
#include "moe/backend.h"

#define INLINE static inline __attribute__((always_inline))

INLINE const void *row_at(const void *buffer, tigon_kind kind, int64_t row, int64_t width) {
  return (const char *)buffer + row * width * tigon_kind_bytes(kind);
}
INLINE void *row_to(void *buffer, tigon_kind kind, int64_t row, int64_t width) {
  return (char *)buffer + row * width * tigon_kind_bytes(kind);
}

/* Whole vectors, or the first n elements with zeros behind. */
INLINE vf load_n(const void *from, tigon_kind kind, int64_t i, int64_t n) {
  return n >= VF_LANES ? vf_load_as(from, kind, i) : vf_load_part(from, kind, i, n);
}
INLINE void store_n(void *to, tigon_kind kind, int64_t i, int64_t n, vf v) {
  if (n >= VF_LANES)
    vf_store_as(to, kind, i, v);
  else
    vf_store_part(to, kind, i, n, v);
}

/* --- weights on the input --------------------------------------------------------------------------------------- */

INLINE float weight_of_row(const tigon_moe_problem *p, const tigon_moe_blocks *b, int64_t row) {
  return tigon_load(tigon_at(&p->weights, b->plan.row_token[row]), p->weights.kind, b->plan.row_choice[row]);
}

INLINE void scale_rows(const tigon_moe_problem *p, const tigon_moe_blocks *b, tigon_kind kind, int64_t begin,
                       int64_t end) {
  for (int64_t r = begin; r < end; r++) {
    const char *from = tigon_at(&p->x, b->plan.row_token[r]);
    void *to = row_to(b->x, kind, r, p->width);
    const vf s = vf_set(weight_of_row(p, b, r));
    for (int64_t i = 0; i < p->width; i += VF_LANES)
      store_n(to, kind, i, p->width - i, s * load_n(from, kind, i, p->width - i));
  }
}

void TIGON_ISA_FN(tigon_moe_scale_input)(const tigon_moe_problem *p, const tigon_moe_blocks *b, int64_t begin,
                                         int64_t end) {
  switch (p->x.kind) {
  case TIGON_BF16:
    scale_rows(p, b, TIGON_BF16, begin, end);
    break;
  case TIGON_F16:
    scale_rows(p, b, TIGON_F16, begin, end);
    break;
  default:
    scale_rows(p, b, TIGON_F32, begin, end);
    break;
  }
}

/* The rows of dx lie in fp32; they are rounded to x's dtype here. */
void TIGON_ISA_FN(tigon_moe_input_dots)(const tigon_moe_problem *p, const tigon_moe_blocks *b,
                                        const tigon_view *d_weights, int64_t begin, int64_t end) {
  const tigon_kind kind = p->x.kind;
  for (int64_t r = begin; r < end; r++) {
    const int64_t t = b->plan.row_token[r];
    const char *x = tigon_at(&p->x, t);
    const float *dx = b->wide + r * p->width;
    vf dot = vf_set(0.0f);
    for (int64_t i = 0; i < p->width; i += VF_LANES)
      dot = vf_fma(vf_round_to(kind, load_n(dx, TIGON_F32, i, p->width - i)), load_n(x, kind, i, p->width - i), dot);
    tigon_store(tigon_at(d_weights, t), d_weights->kind, b->plan.row_choice[r], vf_sum(dot));
  }
}

/* --- activation ------------------------------------------------------------------------------------------------- */

INLINE void swiglu_row(const void *h, void *a, tigon_kind kind, int64_t inner) {
  for (int64_t i = 0; i < inner; i += VF_LANES) {
    const vf g = load_n(h, kind, i, inner - i), u = load_n(h, kind, inner + i, inner - i);
    store_n(a, kind, i, inner - i, g * vf_sigmoid(g) * u);
  }
}

INLINE void swiglu_rows(const tigon_moe_problem *p, const tigon_moe_blocks *b, tigon_kind kind, int64_t begin,
                        int64_t end) {
  for (int64_t r = begin; r < end; r++)
    swiglu_row(row_at(b->h, kind, r, 2 * p->inner), row_to(b->a, kind, r, p->inner), kind, p->inner);
}

void TIGON_ISA_FN(tigon_moe_swiglu)(const tigon_moe_problem *p, const tigon_moe_blocks *b, int64_t begin, int64_t end) {
  switch (p->x.kind) {
  case TIGON_BF16:
    swiglu_rows(p, b, TIGON_BF16, begin, end);
    break;
  case TIGON_F16:
    swiglu_rows(p, b, TIGON_F16, begin, end);
    break;
  default:
    swiglu_rows(p, b, TIGON_F32, begin, end);
    break;
  }
}

/* --- its gradient ----------------------------------------------------------------------------------------------- */

/* One row's blocks; those not wanted are NULL. dh may be h: an element is read before it is written. */
typedef struct backward_row {
  const void *h;
  const float *da; /* da', before the weight */
  void *dh, *weighted;
  float s;
  int64_t inner;
} backward_row;

/* Returns <da', a>. */
INLINE float swiglu_backward_row(const backward_row *row, tigon_kind kind) {
  const int64_t inner = row->inner;
  const vf s = vf_set(row->s), one = vf_set(1.0f);
  vf dot = vf_set(0.0f);
  for (int64_t i = 0; i < inner; i += VF_LANES) {
    const int64_t n = inner - i;
    const vf g = load_n(row->h, kind, i, n), u = load_n(row->h, kind, inner + i, n);
    const vf sigma = vf_sigmoid(g), silu = g * sigma;
    const vf a = vf_round_to(kind, silu * u);
    if (row->weighted) store_n(row->weighted, kind, i, n, s * a);
    if (!row->da) continue;
    const vf da_unweighted = load_n(row->da, TIGON_F32, i, n);
    dot = vf_fma(da_unweighted, a, dot);
    if (!row->dh) continue;
    const vf da = s * da_unweighted;
    store_n(row->dh, kind, i, n, da * u * (sigma * vf_fma(g, one - sigma, one)));
    store_n(row->dh, kind, inner + i, n, da * silu);
  }
  return vf_sum(dot);
}

INLINE void swiglu_backward_rows(const tigon_moe_problem *p, const tigon_moe_blocks *b, const tigon_moe_gradients *g,
                                 tigon_kind kind, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; r++) {
    const backward_row row = {.h = row_at(b->h, kind, r, 2 * p->inner),
                              .da = b->wide ? b->wide + r * p->inner : NULL,
                              .dh = b->dh ? row_to(b->dh, kind, r, 2 * p->inner) : NULL,
                              .weighted = b->a ? row_to(b->a, kind, r, p->inner) : NULL,
                              .s = p->on_input ? 1.0f : weight_of_row(p, b, r),
                              .inner = p->inner};
    const float dot = swiglu_backward_row(&row, kind);
    if (tigon_present(&g->d_weights) && !p->on_input)
      tigon_store(tigon_at(&g->d_weights, b->plan.row_token[r]), g->d_weights.kind, b->plan.row_choice[r], dot);
  }
}

void TIGON_ISA_FN(tigon_moe_swiglu_backward)(const tigon_moe_problem *p, const tigon_moe_blocks *b,
                                             const tigon_moe_gradients *g, int64_t begin, int64_t end) {
  switch (p->x.kind) {
  case TIGON_BF16:
    swiglu_backward_rows(p, b, g, TIGON_BF16, begin, end);
    break;
  case TIGON_F16:
    swiglu_backward_rows(p, b, g, TIGON_F16, begin, end);
    break;
  default:
    swiglu_backward_rows(p, b, g, TIGON_F32, begin, end);
    break;
  }
}

/* --- sums over a token's routes --------------------------------------------------------------------------------- */

/* The rows of one token in order of j. A weight is 1 where the sum is not weighted. */
typedef struct token_rows {
  const void *row[TIGON_MOE_MAX_CHOICES];
  float weight[TIGON_MOE_MAX_CHOICES];
  int count;
} token_rows;

INLINE void find_rows(token_rows *rows, const tigon_moe_problem *p, const tigon_moe_plan *plan, const void *buffer,
                      tigon_kind kind, bool weighted, int64_t token) {
  rows->count = 0;
  for (int64_t j = 0; j < p->choices; j++) {
    const int64_t r = plan->row_of[token * p->choices + j];
    if (r < 0) continue;
    rows->row[rows->count] = row_at(buffer, kind, r, p->width);
    rows->weight[rows->count++] = weighted ? tigon_load(tigon_at(&p->weights, token), p->weights.kind, j) : 1.0f;
  }
}

INLINE void combine_tokens(const tigon_moe_problem *p, const tigon_moe_blocks *b, const tigon_view *out,
                           tigon_kind kind, int64_t begin, int64_t end) {
  token_rows rows;
  for (int64_t t = begin; t < end; t++) {
    find_rows(&rows, p, &b->plan, b->y, kind, !p->on_input, t);
    for (int64_t i = 0; i < p->width; i += VF_LANES) {
      vf sum = vf_set(0.0f);
      for (int j = 0; j < rows.count; j++)
        sum = vf_fma(vf_set(rows.weight[j]), load_n(rows.row[j], kind, i, p->width - i), sum);
      store_n(tigon_at(out, t), out->kind, i, p->width - i, sum);
    }
  }
}

void TIGON_ISA_FN(tigon_moe_combine)(const tigon_moe_problem *p, const tigon_moe_blocks *b, const tigon_view *out,
                                     int64_t begin, int64_t end) {
  switch (p->x.kind) {
  case TIGON_BF16:
    combine_tokens(p, b, out, TIGON_BF16, begin, end);
    break;
  case TIGON_F16:
    combine_tokens(p, b, out, TIGON_F16, begin, end);
    break;
  default:
    combine_tokens(p, b, out, TIGON_F32, begin, end);
    break;
  }
}

/* The rows of dx lie in fp32; they are rounded to x's dtype here. */
void TIGON_ISA_FN(tigon_moe_combine_dx)(const tigon_moe_problem *p, const tigon_moe_blocks *b, const tigon_view *dx,
                                        int64_t begin, int64_t end) {
  token_rows rows;
  for (int64_t t = begin; t < end; t++) {
    find_rows(&rows, p, &b->plan, b->wide, TIGON_F32, p->on_input, t);
    for (int64_t i = 0; i < p->width; i += VF_LANES) {
      vf sum = vf_set(0.0f);
      for (int j = 0; j < rows.count; j++)
        sum = vf_fma(vf_set(rows.weight[j]), vf_round_to(p->x.kind, load_n(rows.row[j], TIGON_F32, i, p->width - i)),
                     sum);
      store_n(tigon_at(dx, t), dx->kind, i, p->width - i, sum);
    }
  }
}
