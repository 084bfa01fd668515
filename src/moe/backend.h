/*
 * Between the checked arguments of a mixture of experts and the code that computes it. R is the most routes that are
 * computed, T * k or the row limit; row buffers are sorted by expert as plan.h says, on the CPU without padding.
 */
#ifndef TIGON_MOE_BACKEND_H
#define TIGON_MOE_BACKEND_H

#include "base/check.h"
#include "base/gemm.h"
#include "base/isa.h"
#include "moe/plan.h"

/* The expert MLP's inputs. Packed gate_up comes as the two views of its halves. */
typedef struct tigon_moe_problem {
  int64_t tokens, choices, width, inner, experts; /* T, k, D, I, E */
  int64_t rows;                                   /* R */
  bool transposed, on_input;                      /* the layout of the weights; s scales x */
  tigon_moe_routing routing;                      /* the ids, cut at R valid ones */
  tigon_view x;                                   /* (T, D) */
  tigon_view ids, weights;                        /* (T, k) */
  tigon_view gate, up;                            /* (E, I, D), transposed (E, D, I) */
  tigon_view down;                                /* (E, D, I), transposed (E, I, D) */
} tigon_moe_problem;

/* Grouped products under construction. */
typedef struct tigon_moe_products {
  tigon_gemm *gemm;
  tigon_gemm_store *store;
  int64_t count;
} tigon_moe_products;

typedef struct tigon_moe_blocks {
  int threads;
  tigon_moe_plan plan;
  tigon_moe_products products;
  void *x;     /* (R, D) x's dtype: s x; with on_input only */
  void *h;     /* (R, 2I) x's dtype: g and u */
  void *a;     /* (R, I) x's dtype: the activation; in backward weighted by s, unless x is */
  void *y;     /* (R, D) x's dtype; forward only; may be h's or x's memory */
  float *wide; /* (R, max(I, D)): da' (R, I), later the rows of dx (R, D); backward only */
  void *dh;    /* (R, 2I) x's dtype: dg and du; h itself where h is recomputed; backward only */
  void *gemm_scratch;
} tigon_moe_blocks;

typedef struct tigon_moe_gradients {
  bool accumulate;                 /* of weights */
  tigon_view dout;                 /* (T, D) */
  tigon_view dx, d_weights;        /* (T, D), (T, k); each of these may be absent */
  tigon_view d_gate, d_up, d_down; /* as gate, up and down */
} tigon_moe_gradients;

/* Whether backward needs the rows of dx. */
static inline bool tigon_moe_wants_dx_rows(const tigon_moe_problem *p, const tigon_moe_gradients *g) {
  return tigon_present(&g->dx) || (p->on_input && tigon_present(&g->d_weights));
}

/* experts.c */
void tigon_moe_run_forward(const tigon_moe_problem *p, tigon_moe_blocks *b, const tigon_view *out);
/* h_ready: b->h holds g and u (and is only read); otherwise they are computed into it. */
void tigon_moe_run_backward(const tigon_moe_problem *p, tigon_moe_blocks *b, const tigon_moe_gradients *g,
                            bool h_ready);
/* Weight gradients of all experts become 0, unless they accumulate; dx and d_weights become 0. */
void tigon_moe_no_gradients(const tigon_moe_gradients *g);
/* Without a limit. */
tigon_moe_routing tigon_moe_routing_of(const tigon_view *ids, int64_t experts);

/* cpu_experts.c: passes over rows [begin, end) or tokens [begin, end) */
TIGON_ISA_DECLARE(void, tigon_moe_scale_input,
                  (const tigon_moe_problem *p, const tigon_moe_blocks *b, int64_t begin, int64_t end));
TIGON_ISA_DECLARE(void, tigon_moe_swiglu,
                  (const tigon_moe_problem *p, const tigon_moe_blocks *b, int64_t begin, int64_t end));
TIGON_ISA_DECLARE(void, tigon_moe_swiglu_backward,
                  (const tigon_moe_problem *p, const tigon_moe_blocks *b, const tigon_moe_gradients *g, int64_t begin,
                   int64_t end));
TIGON_ISA_DECLARE(void, tigon_moe_combine,
                  (const tigon_moe_problem *p, const tigon_moe_blocks *b, const tigon_view *out, int64_t begin,
                   int64_t end));
TIGON_ISA_DECLARE(void, tigon_moe_combine_dx,
                  (const tigon_moe_problem *p, const tigon_moe_blocks *b, const tigon_view *dx, int64_t begin,
                   int64_t end));
/* d_weights of rows whose x was scaled: <row of dx, x> */
TIGON_ISA_DECLARE(void, tigon_moe_input_dots,
                  (const tigon_moe_problem *p, const tigon_moe_blocks *b, const tigon_view *d_weights, int64_t begin,
                   int64_t end));

/* The router. */
enum { TIGON_MOE_ROUTE_CHUNKS = 256, TIGON_MOE_ROUTE_TOKENS = 64 };

typedef struct tigon_moe_router {
  bool sigmoid, renormalize;
  int threads;
  int64_t tokens, choices, experts;
  int64_t groups, open_groups; /* groups of experts, and how many a token may choose from; groups 1: no matter */
  int group_top;               /* experts whose scores make a group's */
  float scale;                 /* of the weights */
  int64_t chunk;               /* tokens a chunk: what one task does, and one partial sum covers */
  tigon_view logits, bias, ids, weights, counts, loss, z_loss;
  float *p_sum;       /* (chunks, E) sums of P_e over a chunk's tokens; NULL without loss */
  int64_t *count_sum; /* (chunks, E) routes; NULL without counts and loss */
  double *z_sum;      /* (chunks) sums of logsumexp^2; NULL without z_loss */
  tigon_view d_weights, d_loss, d_z_loss, d_logits;
  int64_t *count; /* (E) backward */
  float *balance; /* (E) backward: gradient of each token's P_e */
  double z_scale; /* backward: 2 d_z_loss / T */
} tigon_moe_router;

/* cpu_route.c: one chunk of tokens */
TIGON_ISA_DECLARE(void, tigon_moe_route_chunk, (const tigon_moe_router *r, int64_t chunk));
TIGON_ISA_DECLARE(void, tigon_moe_route_backward_chunk, (const tigon_moe_router *r, int64_t chunk));

#endif
