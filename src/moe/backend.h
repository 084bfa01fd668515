/*
 * Between the checked arguments of a mixture of experts and the code that computes it. R = T * k is the number of
 * routes; row buffers are sorted by expert as plan.h says, without padding.
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
  tigon_view x;                                   /* (T, D) */
  tigon_view ids, weights;                        /* (T, k) */
  tigon_view gate, up;                            /* (E, I, D) */
  tigon_view down;                                /* (E, D, I) */
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
  void *h;     /* (R, 2I) x's dtype: g and u */
  void *a;     /* (R, I) x's dtype: the activation; in backward weighted by s */
  void *y;     /* (R, D) x's dtype; forward only; may be h's memory */
  float *wide; /* (R, max(I, D)): da' (R, I), later the rows of dx (R, D); backward only */
  void *dh;    /* (R, 2I) x's dtype: dg and du; h itself where h is recomputed; backward only */
  void *gemm_scratch;
} tigon_moe_blocks;

typedef struct tigon_moe_gradients {
  bool accumulate;                 /* of weights */
  tigon_view dout;                 /* (T, D) */
  tigon_view dx, d_weights;        /* (T, D), (T, k); each of these may be absent */
  tigon_view d_gate, d_up, d_down; /* (E, I, D) twice, (E, D, I) */
} tigon_moe_gradients;

/* experts.c */
void tigon_moe_run_forward(const tigon_moe_problem *p, tigon_moe_blocks *b, const tigon_view *out);
/* h_ready: b->h holds g and u (and is only read); otherwise they are computed into it. */
void tigon_moe_run_backward(const tigon_moe_problem *p, tigon_moe_blocks *b, const tigon_moe_gradients *g,
                            bool h_ready);
/* Weight gradients of all experts become 0, unless they accumulate; dx and d_weights become 0. */
void tigon_moe_no_gradients(const tigon_moe_gradients *g);
tigon_moe_routing tigon_moe_routing_of(const tigon_view *ids, int64_t experts);

/* cpu_experts.c: passes over rows [begin, end) or tokens [begin, end) */
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

/* The router. */
enum { TIGON_MOE_ROUTE_CHUNKS = 256, TIGON_MOE_ROUTE_TOKENS = 64 };

typedef struct tigon_moe_router {
  bool sigmoid, renormalize;
  int threads;
  int64_t tokens, choices, experts;
  int64_t chunk; /* tokens a chunk: what one task does, and one partial sum covers */
  tigon_view logits, ids, weights, counts, loss;
  float *p_sum;       /* (chunks, E) sums of P_e over a chunk's tokens; NULL without loss */
  int64_t *count_sum; /* (chunks, E) routes; NULL without counts and loss */
  tigon_view d_weights, d_loss, d_logits;
  int64_t *count; /* (E) backward */
  float *balance; /* (E) backward: gradient of each token's P_e */
} tigon_moe_router;

/* cpu_route.c: one chunk of tokens */
TIGON_ISA_DECLARE(void, tigon_moe_route_chunk, (const tigon_moe_router *r, int64_t chunk));
TIGON_ISA_DECLARE(void, tigon_moe_route_backward_chunk, (const tigon_moe_router *r, int64_t chunk));

#endif
