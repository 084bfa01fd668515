#include "adamw.h"

#include <math.h>

enum { PIECE = 1 << 15, MAX_PIECES = 256 };

/* Sums of pieces, whose number and size depend on the number of elements alone. */
typedef struct norm_loop {
  const model *m;
  int64_t piece;
  double sums[MAX_PIECES];
} norm_loop;

static void sum_piece(void *context, int64_t begin, int64_t end) {
  norm_loop *loop = context;
  loop->sums[begin / loop->piece] = loop->m->loops->squares(loop->m->gradients + begin, end - begin);
}

double adamw_gradient_norm(const model *m) {
  const int64_t elements = m->shape->elements, least = (elements + MAX_PIECES - 1) / MAX_PIECES;
  norm_loop loop = {.m = m, .piece = least > PIECE ? (least + 1023) / 1024 * 1024 : PIECE};
  parallel_for(m->crew, elements, loop.piece, sum_piece, &loop);
  double sum = 0;
  for (int64_t i = 0; i * loop.piece < elements; i++) sum += loop.sums[i];
  return sqrt(sum);
}

typedef struct update_loop {
  model *m;
  adamw_step decayed, kept;
} update_loop;

/* The piece may hold several tensors, with and without weight decay. */
static void update_piece(void *context, int64_t begin, int64_t end) {
  const update_loop *loop = context;
  const model *m = loop->m;
  for (int i = 0; i < m->shape->count; i++) {
    const parameter *p = &m->shape->parameters[i];
    const int64_t from = p->offset > begin ? p->offset : begin;
    const int64_t to = p->offset + p->count < end ? p->offset + p->count : end;
    if (from < to)
      m->loops->adamw(p->decays ? &loop->decayed : &loop->kept, m->gradients + from, m->weights + from,
                      m->moment + from, m->variance + from, to - from);
  }
}

void adamw_update(model *m, const adamw_settings *settings, double rate, double gradient_norm, int64_t step) {
  adamw_step kept = {.rate = (float)rate, .shrink = 1, .epsilon = settings->epsilon};
  kept.gradient_scale = gradient_norm > (double)settings->clip ? (float)((double)settings->clip / gradient_norm) : 1;
  kept.beta1 = settings->beta1;
  kept.beta2 = settings->beta2;
  kept.correction1 = (float)(1 / (1 - pow((double)settings->beta1, (double)step)));
  kept.correction2 = (float)(1 / (1 - pow((double)settings->beta2, (double)step)));
  update_loop loop = {m, kept, kept};
  loop.decayed.shrink = (float)(1 - rate * (double)settings->weight_decay);
  parallel_for(m->crew, m->shape->elements, PIECE, update_piece, &loop);
}
