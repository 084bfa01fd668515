/* A case's tensors, its calls, and the oracle's answers. */
#ifndef TIGON_TESTS_LIGHTNING_ATTENTION_FIXTURE_H
#define TIGON_TESTS_LIGHTNING_ATTENTION_FIXTURE_H

#include "lightning_attention/cases.h"
#include "reference/lightning_attention.h"
#include "tests/support/support.h"

typedef struct fixture {
  const lightning_case *c;
  int64_t N, decays;
  test_tensor qkv; /* the memory of q, k and v where they are fused */
  test_tensor q, k, v, decay, cu_seqlens, initial_state, out, final_state;
  test_tensor dout, d_final_state, dq, dk, dv, d_initial_state;
} fixture;

static inline tigon_kind kind_or_f32(tigon_kind kind) { return kind ? kind : TIGON_F32; }

static inline const DLTensor *present(const test_tensor *t) { return t->tensor.dl.shape ? &t->tensor.dl : NULL; }

/* A (B, T, heads, size) view of columns [column, ...) of the fused tensor. */
static inline void make_fused_view(test_tensor *t, const test_tensor *all, int64_t column, int64_t heads,
                                   int64_t size) {
  const int64_t *s = all->tensor.shape;
  memset(t, 0, sizeof *t);
  t->kind = all->kind;
  t->count = s[0] * s[1] * heads * size;
  tigon_tensor_nd(&t->tensor, NULL, test_dtype(all->kind), 4, (int64_t[]){s[0], s[1], heads, size});
  memcpy(t->tensor.strides, (int64_t[]){all->tensor.strides[0], all->tensor.strides[1], size, 1}, 4 * sizeof(int64_t));
  t->tensor.dl.data = (char *)all->tensor.dl.data + column * tigon_kind_bytes(all->kind);
  t->tensor.dl.byte_offset = all->tensor.dl.byte_offset;
}

/* A (P, HV, V, K) pool with `pad` floats after each head's state and room for one more head after each slot. */
static inline void make_pool(test_tensor *t, const int64_t *shape, int64_t pad) {
  const int64_t state = shape[2] * shape[3];
  test_tensor_make(t, TIGON_F32, 3, (int64_t[]){shape[0], shape[1] + 1, state}, (test_layout){.row_pad = pad});
  const int64_t strides[4] = {t->tensor.strides[0], t->tensor.strides[1], shape[3], 1};
  tigon_tensor_nd(&t->tensor, t->tensor.dl.data, tigon_f32(), 4, shape);
  memcpy(t->tensor.strides, strides, sizeof strides);
  t->count = shape[0] * shape[1] * state;
}

static inline void make_inputs(fixture *f) {
  const lightning_case *c = f->c;
  const tigon_kind query_kind = kind_or_f32(c->query_kind), value_kind = kind_or_f32(c->value_kind);
  const test_layout padded = {.row_pad = 3, .offset = 1};
  if (c->fused) {
    test_tensor_make(&f->qkv, query_kind, 3, (int64_t[]){c->B, c->T, 2 * c->H * c->K + c->HV * c->V}, padded);
    make_fused_view(&f->q, &f->qkv, 0, c->H, c->K);
    make_fused_view(&f->k, &f->qkv, c->H * c->K, c->H, c->K);
    make_fused_view(&f->v, &f->qkv, 2 * c->H * c->K, c->HV, c->V);
    return;
  }
  test_tensor_make(&f->q, query_kind, 4, (int64_t[]){c->B, c->T, c->H, c->K}, padded);
  test_tensor_make(&f->k, query_kind, 4, (int64_t[]){c->B, c->T, c->H, c->K}, (test_layout){0});
  test_tensor_make(&f->v, value_kind, 4, (int64_t[]){c->B, c->T, c->HV, c->V}, padded);
}

static inline void make_fixture(fixture *f, const lightning_case *c, uint64_t seed) {
  memset(f, 0, sizeof *f);
  test_rng rng = {seed};
  f->c = c;
  f->N = c->bounds_kind ? c->bounds_count - 1 : c->B;
  f->decays = c->decay_of_query_heads ? c->H : c->HV;
  make_inputs(f);
  const int64_t values[4] = {c->B, c->T, c->HV, c->V}, queries[4] = {c->B, c->T, c->H, c->K};
  const int64_t states[4] = {f->N, c->HV, c->V, c->K};
  const test_layout padded = {.row_pad = 5}, expanded = {.expand = c->expanded};
  const tigon_kind query_kind = f->q.kind, value_kind = f->v.kind, out_kind = kind_or_f32(c->out_kind);
  test_tensor_make(&f->decay, TIGON_F32, 1, &f->decays, (test_layout){.vector_stride = 2});
  if (c->bounds_kind) {
    test_tensor_make(&f->cu_seqlens, c->bounds_kind, 1, (int64_t[]){f->N + 1}, (test_layout){.vector_stride = 3});
    for (int64_t i = 0; i <= f->N; i++) /* not through a double: the extremes of int64 must survive */
      tigon_store_index(f->cu_seqlens.tensor.dl.data, c->bounds_kind, 3 * i, c->bounds[i]);
  }
  if (c->initial_state)
    test_tensor_make(&f->initial_state, TIGON_F32, 4, states, c->final_state == FINAL_ALIAS ? padded : expanded);
  test_tensor_make(&f->out, out_kind, 4, values, padded);
  if (c->final_state == FINAL_OWN) test_tensor_make(&f->final_state, TIGON_F32, 4, states, padded);
  test_tensor_make(&f->dout, out_kind, 4, values, expanded);
  if (c->final_state != FINAL_ABSENT)
    test_tensor_make(&f->d_final_state, TIGON_F32, 4, states, c->final_state == FINAL_ALIAS ? padded : expanded);
  test_tensor_make(&f->dq, query_kind, 4, queries, padded);
  test_tensor_make(&f->dk, query_kind, 4, queries, (test_layout){0});
  test_tensor_make(&f->dv, value_kind, 4, values, padded);
  if (c->final_state != FINAL_ALIAS) test_tensor_make(&f->d_initial_state, TIGON_F32, 4, states, padded);

  for (int64_t i = 0; i < f->decays; i++) test_tensor_set(&f->decay, i, c->decay[i % 4]);
  test_tensor *random[] = {&f->q, &f->k, &f->v, &f->initial_state, &f->dout, &f->d_final_state};
  for (int i = 0; i < 6; i++)
    if (present(random[i])) test_tensor_fill_normal(random[i], &rng, 1.0);
}

static inline void free_fixture(fixture *f) {
  test_tensor *all[] = {&f->qkv,
                        &f->q,
                        &f->k,
                        &f->v,
                        &f->decay,
                        &f->cu_seqlens,
                        &f->initial_state,
                        &f->out,
                        &f->final_state,
                        &f->dout,
                        &f->d_final_state,
                        &f->dq,
                        &f->dk,
                        &f->dv,
                        &f->d_initial_state};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (all[i]->block && all[i] != &f->qkv) test_tensor_check_surroundings(all[i]);
    free(all[i]->block);
  }
}

/* --- the oracle's view of the inputs ----------------------------------------------------------------------------- */

typedef struct oracle_inputs {
  lightning_inputs in;
  int64_t sizes[8], bounds[MAX_BOUNDS];
  double *q, *k, *v, *decay, *initial_state, *dout, *d_final_state;
} oracle_inputs;

static inline double *values_or_null(const test_tensor *t) { return present(t) ? test_tensor_values(t) : NULL; }

/* Reads the tensors as they are now. */
static inline void read_inputs(oracle_inputs *o, const fixture *f) {
  const lightning_case *c = f->c;
  memcpy(o->sizes, (int64_t[]){c->B, c->T, c->H, c->HV, c->K, c->V, f->N, f->decays}, sizeof o->sizes);
  memcpy(o->bounds, c->bounds, sizeof o->bounds);
  o->q = test_tensor_values(&f->q);
  o->k = test_tensor_values(&f->k);
  o->v = test_tensor_values(&f->v);
  o->decay = test_tensor_values(&f->decay);
  o->initial_state = values_or_null(&f->initial_state);
  o->dout = test_tensor_values(&f->dout);
  o->d_final_state = values_or_null(&f->d_final_state);
  o->in = (lightning_inputs){.sizes = o->sizes,
                             .scale = c->scale != 0 ? (double)(float)c->scale : 1.0,
                             .q = o->q,
                             .k = o->k,
                             .v = o->v,
                             .decay = o->decay,
                             .cu_seqlens = c->bounds_kind ? o->bounds : NULL,
                             .initial_state = o->initial_state};
}

static inline void free_inputs(oracle_inputs *o) {
  double *all[] = {o->q, o->k, o->v, o->decay, o->initial_state, o->dout, o->d_final_state};
  for (int i = 0; i < 7; i++) free(all[i]);
}

static inline double *doubles(int64_t n) {
  double *values = calloc((size_t)n + 1, sizeof *values);
  assert_non_null(values);
  return values;
}

/* --- calls ------------------------------------------------------------------------------------------------------- */

static inline tigon_lightning_attention_args forward_args(fixture *f) {
  const bool alias = f->c->final_state == FINAL_ALIAS;
  return (tigon_lightning_attention_args){.size = sizeof(tigon_lightning_attention_args),
                                          .scale = (float)f->c->scale,
                                          .q = &f->q.tensor.dl,
                                          .k = &f->k.tensor.dl,
                                          .v = &f->v.tensor.dl,
                                          .decay = &f->decay.tensor.dl,
                                          .cu_seqlens = present(&f->cu_seqlens),
                                          .initial_state = present(&f->initial_state),
                                          .out = &f->out.tensor.dl,
                                          .final_state = alias ? &f->initial_state.tensor.dl
                                                               : (DLTensor *)(uintptr_t)present(&f->final_state)};
}

static inline tigon_lightning_attention_backward_args backward_args(fixture *f) {
  const bool alias = f->c->final_state == FINAL_ALIAS;
  return (tigon_lightning_attention_backward_args){.size = sizeof(tigon_lightning_attention_backward_args),
                                                   .scale = (float)f->c->scale,
                                                   .dout = &f->dout.tensor.dl,
                                                   .q = &f->q.tensor.dl,
                                                   .k = &f->k.tensor.dl,
                                                   .v = &f->v.tensor.dl,
                                                   .decay = &f->decay.tensor.dl,
                                                   .cu_seqlens = present(&f->cu_seqlens),
                                                   .initial_state = present(&f->initial_state),
                                                   .d_final_state = present(&f->d_final_state),
                                                   .dq = &f->dq.tensor.dl,
                                                   .dk = &f->dk.tensor.dl,
                                                   .dv = &f->dv.tensor.dl,
                                                   .d_initial_state = alias ? &f->d_final_state.tensor.dl
                                                                            : &f->d_initial_state.tensor.dl};
}

/* With a workspace of exactly the queried size. */
static inline void run_forward(fixture *f, int threads, tigon_context *context) {
  const tigon_lightning_attention_args args = forward_args(f);
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  uint64_t bytes;
  test_expect_status(tigon_lightning_attention_workspace(&exec, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  w.exec.context = context;
  test_expect_status(tigon_lightning_attention(&w.exec, &args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

static inline void run_backward(fixture *f, int threads, tigon_context *context) {
  const tigon_lightning_attention_backward_args args = backward_args(f);
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  uint64_t bytes;
  test_expect_status(tigon_lightning_attention_backward_workspace(&exec, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  w.exec.context = context;
  test_expect_status(tigon_lightning_attention_backward(&w.exec, &args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

#endif
