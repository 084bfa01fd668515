/*
 * The integer plan of a mixture of experts: which row of the row buffers belongs to which route.
 *
 * A route is one choice of one token: route = token * choices + choice. Rows are sorted by expert, within an expert by
 * route (a stable counting sort), and every expert's segment begins at a multiple of `align` rows: 64 where tiles of
 * rows are stored whole, 1 where no padding is needed. Experts without rows take no space, so for n routes
 * n + min(E, n) * (align - 1) rows are always enough.
 *
 * A route is skipped when its id is not in [0, E), or when it stands at `end` or later: where rows are limited, `end`
 * is the first route with a valid id that finds no row left.
 *
 * The steps are plain functions over arrays that compile for host and device. Blocks of tokens may be counted and
 * placed apart: count each block, give block b of expert e the rows behind those of blocks 0 .. b - 1, then place each
 * block. The result does not depend on the cutting.
 */
#ifndef TIGON_MOE_PLAN_H
#define TIGON_MOE_PLAN_H

#include <stdint.h>

#if defined(__CUDACC__)
#define TIGON_MOE_PLAN_FN static __host__ __device__ inline
#else
#define TIGON_MOE_PLAN_FN static inline
#endif

enum { TIGON_MOE_MAX_CHOICES = 32, TIGON_MOE_MAX_EXPERTS = 4096 };

/* Expert ids as the caller gave them: (tokens, choices), rows `stride` elements apart. */
typedef struct tigon_moe_routing {
  const void *ids;
  int wide; /* 1: int64, 0: int32 */
  int64_t stride;
  int64_t tokens, choices, experts;
  int64_t end; /* T * k, or what tigon_moe_plan_end gives */
} tigon_moe_routing;

typedef struct tigon_moe_plan {
  int64_t rows;        /* end of the last segment */
  int64_t *count;      /* (E) rows of an expert, exact */
  int64_t *begin;      /* (E) first row of its segment */
  int64_t *next;       /* (E) scratch */
  int32_t *row_token;  /* (row bound) token of a row, -1 in padding */
  uint8_t *row_choice; /* (row bound) choice of a row; 0 in padding */
  int64_t *row_of;     /* (T, k) row of a route, -1 when it is skipped */
} tigon_moe_plan;

TIGON_MOE_PLAN_FN int64_t tigon_moe_id(const tigon_moe_routing *r, int64_t token, int64_t choice) {
  const int64_t at = token * r->stride + choice;
  return r->wide ? ((const int64_t *)r->ids)[at] : ((const int32_t *)r->ids)[at];
}

/* The expert of a route, -1 when it is skipped. */
TIGON_MOE_PLAN_FN int64_t tigon_moe_expert(const tigon_moe_routing *r, int64_t token, int64_t choice) {
  const int64_t id = tigon_moe_id(r, token, choice);
  return id >= 0 && id < r->experts && token * r->choices + choice < r->end ? id : -1;
}

TIGON_MOE_PLAN_FN int64_t tigon_moe_row_bound(int64_t routes, int64_t experts, int64_t align) {
  return routes + (experts < routes ? experts : routes) * (align - 1);
}

/* count[e] += routes of the tokens [begin, end) to expert e */
TIGON_MOE_PLAN_FN void tigon_moe_plan_count(const tigon_moe_routing *r, int64_t begin, int64_t end, int64_t *count) {
  for (int64_t t = begin; t < end; t++)
    for (int64_t j = 0; j < r->choices; j++) {
      const int64_t e = tigon_moe_expert(r, t, j);
      if (e >= 0) count[e]++;
    }
}

/* begin[e] = first row of expert e; returns the end of the last segment. */
TIGON_MOE_PLAN_FN int64_t tigon_moe_plan_segments(const int64_t *count, int64_t experts, int64_t align,
                                                  int64_t *begin) {
  int64_t row = 0;
  for (int64_t e = 0; e < experts; e++) {
    begin[e] = row;
    row += (count[e] + align - 1) / align * align;
  }
  return row;
}

/* Gives the routes of the tokens [begin, end) their rows: next[e], counting up. */
TIGON_MOE_PLAN_FN void tigon_moe_plan_place(const tigon_moe_routing *r, int64_t begin, int64_t end, int64_t *next,
                                            tigon_moe_plan *plan) {
  for (int64_t t = begin; t < end; t++)
    for (int64_t j = 0; j < r->choices; j++) {
      const int64_t e = tigon_moe_expert(r, t, j);
      const int64_t row = e >= 0 ? next[e]++ : -1;
      plan->row_of[t * r->choices + j] = row;
      if (row < 0) continue;
      plan->row_token[row] = (int32_t)t;
      plan->row_choice[row] = (uint8_t)j;
    }
}

/* Marks the rows between a segment's last row and its end as padding. */
TIGON_MOE_PLAN_FN void tigon_moe_plan_pad(int64_t expert, int64_t align, tigon_moe_plan *plan) {
  const int64_t count = plan->count[expert], begin = plan->begin[expert];
  for (int64_t i = count; i % align != 0; i++) {
    plan->row_token[begin + i] = -1;
    plan->row_choice[begin + i] = 0;
  }
}

/* Fills the plan, whose arrays the caller has placed. */
void tigon_moe_plan_build(const tigon_moe_routing *routing, int64_t align, tigon_moe_plan *plan);

/* The first route with a valid id that has `limit` such routes before it, or T * k; routing->end is not looked at.
 * *needed: routes with a valid id. */
int64_t tigon_moe_plan_end(const tigon_moe_routing *routing, int64_t limit, int64_t *needed);

/* The first route whose id is E or more, or -1. */
int64_t tigon_moe_plan_first_bad(const tigon_moe_routing *routing);

#endif
