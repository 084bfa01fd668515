/* How forward and backward call Tigon: run the operation, or, while the arena is planned, ask for its workspace. */
#ifndef APPS_OPERATION_H
#define APPS_OPERATION_H

#include "model.h"

#define RUN(m, op, args)                                                                        \
  do {                                                                                          \
    uint64_t bytes_ = 0;                                                                        \
    if ((m)->failed_op) break;                                                                  \
    const tigon_status status_ =                                                                \
        (m)->planning ? op##_workspace(&(m)->exec, &(args), &bytes_) : op(&(m)->exec, &(args)); \
    operation_done(m, #op, status_, bytes_);                                                    \
  } while (0)

static inline void operation_done(model *m, const char *op, tigon_status status, uint64_t workspace_bytes) {
  if (status != TIGON_OK)
    m->failed_op = op;
  else if (workspace_bytes > m->exec.workspace_bytes)
    m->exec.workspace_bytes = workspace_bytes;
}

static inline DLTensor *matrix(tigon_tensor *t, float *data, int64_t rows, int64_t columns) {
  return tigon_tensor_2d(t, data, tigon_f32(), rows, columns);
}

static inline DLTensor *vector(tigon_tensor *t, float *data, int64_t n) {
  return tigon_tensor_1d(t, data, tigon_f32(), n);
}

/* A parameter in one of the blocks m->weights and m->gradients. */
static inline DLTensor *in_block(const model *m, tigon_tensor *t, float *block, int64_t layer, int which) {
  const parameter *p = model_parameter(m->shape, layer, which);
  return tigon_tensor_nd(t, block ? block + p->offset : NULL, tigon_f32(), p->ndim, p->shape);
}

static inline DLTensor *heads_3d(const model *m, tigon_tensor *t, float *data) { // (B T, H, D / H)
  const model_config *c = &m->shape->config;
  return tigon_tensor_3d(t, data, tigon_f32(), m->batch * m->length, c->heads, c->width / c->heads);
}

/* The part'th D columns of rows of `parts` D columns, as (B, T, H, D / H), or (B, H, D / H) when decoding. */
static inline DLTensor *heads(const model *m, tigon_tensor *t, float *data, int64_t parts, int64_t part) {
  const model_config *c = &m->shape->config;
  const int64_t row = parts * c->width, channels = c->width / c->heads;
  float *at = data ? data + part * c->width : NULL;
  if (m->decoding) {
    DLTensor *view = tigon_tensor_3d(t, at, tigon_f32(), m->batch, c->heads, channels);
    t->strides[0] = row;
    return view;
  }
  DLTensor *view = tigon_tensor_4d(t, at, tigon_f32(), m->batch, m->length, c->heads, channels);
  t->strides[0] = m->length * row;
  t->strides[1] = row;
  return view;
}

enum { ROWS_A_PIECE = 64 };

/* Loops over the tokens of one layer. */
typedef struct layer_loop {
  const model *m;
  const layer_activations *l;
} layer_loop;

static inline void over_tokens(model *m, const layer_activations *l, loop_body body) {
  layer_loop loop = {m, l};
  if (!m->planning && !m->failed_op) parallel_for(m->crew, m->batch * m->length, ROWS_A_PIECE, body, &loop);
}

#endif
