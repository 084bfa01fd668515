/* State pools: the cases that every backend is tested with, their tensors, and the oracle's answers. */
#ifndef TIGON_TESTS_LIGHTNING_ATTENTION_POOLS_H
#define TIGON_TESTS_LIGHTNING_ATTENTION_POOLS_H

#include "lightning_attention/fixture.h"

/* c gives the sequences; c.initial_state and c.final_state say whether the pool is read and written. */
typedef struct pool_case {
  lightning_case c;
  int64_t P; /* 0: no indices, sequence n has state n */
  tigon_kind index_kind;
  int64_t slots[MAX_BOUNDS];
  tigon_kind flag_kind; /* 0: no has_initial_state */
  int64_t flags[MAX_BOUNDS];
  int64_t pad;           /* floats between states */
  tigon_kind begin_kind; /* 0: no checkpoint_begin */
  int64_t every, rows, begin[MAX_BOUNDS];
  tigon_kind length_kind; /* of the states alone; 0: no lengths */
  int64_t lengths[MAX_BOUNDS];
  const char *bad; /* what the record names, if anything */
  int64_t bad_index, bad_value;
} pool_case;

#define SEQUENCES(kind, ...) \
  .bounds_kind = kind, .bounds_count = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .bounds = {__VA_ARGS__}

#define SLOTS(count, kind, ...) .P = count, .index_kind = kind, .slots = {__VA_ARGS__}
#define FLAGS(kind, ...)        .flag_kind = kind, .flags = {__VA_ARGS__}

static const pool_case pool_cases[] = {
    {{"in place", 3, 70, 2, 4, 20, 12, TYPICAL, IN_PLACE}, SLOTS(5, TIGON_I32, 4, 0, 2), .pad = 3},
    {{"read only", 3, 9, 2, 2, 20, 12, TYPICAL, .initial_state = true}, SLOTS(5, TIGON_I64, 4, 0, 2), .pad = 3},
    {{"write only", 2, 65, 2, 2, 20, 12, TYPICAL, .final_state = FINAL_OWN}, SLOTS(3, TIGON_I32, 2, 0), .pad = 64},
    {{"from one pool to another", 2, 65, 1, 2, 33, 17, GENTLE, STATES}, SLOTS(4, TIGON_I64, 3, 1), .pad = 1},
    {{"padding", 4, 130, 2, 2, 20, 40, TYPICAL, IN_PLACE}, SLOTS(3, TIGON_I32, -1, 2, -1, 0), .pad = 5},
    {{"nothing but padding", 3, 64, 2, 2, 20, 40, TYPICAL, IN_PLACE}, SLOTS(3, TIGON_I64, -1, -1, -1)},
    {{"padding first", 2, 10, 2, 2, 8, 8, TYPICAL, IN_PLACE}, SLOTS(1, TIGON_I64, -1, 0)},
    {{"slots that are not there", 5, 30, 2, 2, 20, 40, TYPICAL, IN_PLACE},
     SLOTS(3, TIGON_I64, 1, 3, INT64_MIN, INT64_MAX, 0),
     .bad = "state_indices",
     .bad_index = 1,
     .bad_value = 3},
    {{"below -1", 3, 30, 2, 2, 20, 40, TYPICAL, STATES},
     SLOTS(3, TIGON_I32, 1, -2, 0),
     .bad = "state_indices",
     .bad_index = 1,
     .bad_value = -2},
    {{"fresh sequences, bool", 4, 70, 2, 4, 20, 12, TYPICAL, IN_PLACE},
     SLOTS(6, TIGON_I32, 4, 0, 2, -1),
     FLAGS(TIGON_U8, 1, 0, 255, 0),
     .pad = 3},
    {{"fresh sequences, int32", 3, 1, 2, 2, 20, 12, TYPICAL, IN_PLACE},
     SLOTS(3, TIGON_I32, 0, 1, 2),
     FLAGS(TIGON_I32, 0, -7, 0)},
    {{"fresh sequences, int64", 3, 100, 2, 2, 20, 12, TYPICAL, STATES},
     SLOTS(3, TIGON_I64, 0, 1, 2),
     FLAGS(TIGON_I64, 0, INT64_C(1) << 32, 0)},
    {{"fresh sequences without a pool", 3, 66, 2, 2, 20, 12, TYPICAL, IN_PLACE},
     .flag_kind = TIGON_U8,
     .flags = {0, 1, 0}},
    {{"no token", 3, 0, 2, 2, 20, 12, TYPICAL, STATES}, SLOTS(5, TIGON_I32, 4, -1, 2), FLAGS(TIGON_U8, 0, 1, 1)},
    {{"packed", 1, 300, 1, 2, 20, 70, TYPICAL, IN_PLACE, SEQUENCES(TIGON_I32, 0, 65, 65, 129, 300)},
     SLOTS(7, TIGON_I32, 6, 1, -1, 3),
     FLAGS(TIGON_U8, 0, 1, 1, 1),
     .pad = 9},
    {{"packed, empty sequences", 1, 100, 2, 2, 9, 12, TYPICAL, IN_PLACE, SEQUENCES(TIGON_I64, 0, 0, 64, 64, 100, 100)},
     SLOTS(5, TIGON_I64, 0, 4, 1, 3, 2),
     FLAGS(TIGON_U8, 0, 1, 1, 0, 1)},
    {{"packed, padding at the end", 1, 700, 2, 2, 16, 16, TYPICAL, STATES, SEQUENCES(TIGON_I64, 0, 70, 70, 141)},
     SLOTS(4, TIGON_I64, 2, -1, 0)},
    {{"bf16, groups of 8", 2, 129, 1, 8, 32, 24, GENTLE, ALL_BF16, IN_PLACE}, SLOTS(3, TIGON_I32, 2, 1), .pad = 2},
    {{"f16, fused", 2, 100, 2, 4, 32, 24, GENTLE, ALL_F16, .fused = true, IN_PLACE},
     SLOTS(3, TIGON_I32, 2, 1),
     .pad = 2},
    {{"large heads in bundles", 2, 70, 2, 4, 128, 128, GENTLE, IN_PLACE}, SLOTS(3, TIGON_I32, 2, -1), .pad = 4},
    {{"infinite decay", 2, 70, 4, 4, 16, 16, {0.5, INFINITY, 0.1, INFINITY}, IN_PLACE}, SLOTS(3, TIGON_I32, 2, 0)},
    {{"checkpoints", 2, 300, 2, 4, 20, 12, TYPICAL, STATES}, .every = 64, .rows = 8},
    {{"checkpoints at every whole length", 2, 128, 2, 2, 20, 70, TYPICAL, IN_PLACE}, .every = 64, .rows = 4},
    {{"checkpoints without a final state", 2, 128, 2, 2, 128, 40, TYPICAL, .final_state = FINAL_ABSENT},
     .every = 128,
     .rows = 3},
    {{"checkpoints that no sequence reaches", 2, 127, 2, 2, 20, 12, TYPICAL, STATES}, .every = 128, .rows = 3},
    {{"checkpoints in a pool, packed", 1, 1000, 2, 2, 20, 12, GENTLE, IN_PLACE,
      SEQUENCES(TIGON_I32, 0, 65, 65, 129, 300, 500, 1000)},
     SLOTS(9, TIGON_I32, 6, 1, -1, 3, 0, 8),
     FLAGS(TIGON_U8, 0, 1, 1, 1, 0, 1),
     .pad = 5,
     .every = 64,
     .rows = 20,
     .begin_kind = TIGON_I64,
     .begin = {2, 3, 3, 4, 6, 9, 16}},
    {{"checkpoints of unaligned requests", 1, 1000, 1, 1, 12, 20, GENTLE, STATES,
      SEQUENCES(TIGON_I64, 0, 191, 192, 385, 1000)},
     .every = 192,
     .rows = 4,
     .begin_kind = TIGON_I32,
     .begin = {0, 0, 0, 1, 4}},
    {{"checkpoints beyond the rows", 2, 200, 2, 2, 20, 12, TYPICAL, STATES},
     .every = 64,
     .rows = 4,
     .bad = "checkpoints",
     .bad_index = 1,
     .bad_value = 3},
    {{"no row for checkpoints", 2, 200, 2, 2, 20, 12, TYPICAL, STATES},
     .every = 64,
     .bad = "checkpoints",
     .bad_value = 3},
    {{"checkpoints beyond their sequence", 1, 400, 2, 2, 20, 12, TYPICAL, IN_PLACE, SEQUENCES(TIGON_I32, 0, 200, 400)},
     .every = 64,
     .rows = 9,
     .begin_kind = TIGON_I32,
     .begin = {0, 2, 9},
     .bad = "checkpoints",
     .bad_value = 3},
    {{"checkpoints beyond their sequence, whose neighbour has none", 1, 230, 2, 2, 20, 12, TYPICAL, IN_PLACE,
      SEQUENCES(TIGON_I32, 0, 200, 230)},
     .every = 64,
     .rows = 9,
     .begin_kind = TIGON_I32,
     .begin = {0, 2, 9},
     .bad = "checkpoints",
     .bad_value = 3},
    {{"bad rows of checkpoints", 1, 600, 2, 2, 20, 12, TYPICAL, STATES, SEQUENCES(TIGON_I32, 0, 200, 400, 600)},
     .every = 64,
     .rows = 9,
     .begin_kind = TIGON_I64,
     .begin = {-1, 4, 1, INT64_MAX},
     .bad = "checkpoint_begin",
     .bad_value = -1},
    {{"decreasing rows of checkpoints", 1, 600, 2, 2, 20, 12, TYPICAL, STATES, SEQUENCES(TIGON_I32, 0, 200, 400, 600)},
     .every = 64,
     .rows = 9,
     .begin_kind = TIGON_I32,
     .begin = {0, 6, 3, 9},
     .bad = "checkpoint_begin",
     .bad_index = 2,
     .bad_value = 3},
    {{"bad decay before bad slots", 2, 70, 2, 2, 16, 16, {0.5, -1}, IN_PLACE},
     SLOTS(3, TIGON_I32, 9, 0),
     .bad = "decay",
     .bad_index = 1,
     .bad_value = 0xbf800000},
};

typedef struct pool_fixture {
  fixture f; /* without states */
  lightning_case c;
  const pool_case *p;
  test_tensor initial, final, indices, flags, checkpoints, begin, lengths;
} pool_fixture;

static inline bool is_padding(const pool_case *p, int64_t n) {
  return p->P > 0 && (p->slots[n] < 0 || p->slots[n] >= p->P);
}

static inline int64_t slot_of(const pool_case *p, int64_t n) { return p->P ? p->slots[n] : n; }

/* The sequence that has a slot; -1: none. */
static inline int64_t sequence_at(const pool_fixture *f, int64_t slot) {
  for (int64_t n = 0; n < f->f.N; n++)
    if (!is_padding(f->p, n) && slot_of(f->p, n) == slot) return n;
  return -1;
}

/* Every second element of a vector, so that its stride is 2. */
static inline void make_vector(test_tensor *t, tigon_kind kind, int64_t count, const int64_t *values) {
  if (!kind) return;
  test_tensor_make(t, kind, 1, &count, (test_layout){.vector_stride = 2});
  for (int64_t i = 0; i < count; i++)
    if (kind == TIGON_U8)
      test_tensor_set(t, i, (double)values[i]);
    else /* not through a double: the extremes of int64 must survive */
      tigon_store_index(t->tensor.dl.data, kind, 2 * i, values[i]);
}

/* Puts NaN where nothing may be read: slots in no use, initial states of fresh sequences, tokens of padding and of
 * none. */
static inline void poison(pool_fixture *f) {
  const int64_t state = f->c.HV * f->c.V * f->c.K;
  for (int64_t i = 0; i < f->initial.count; i++) {
    const int64_t n = sequence_at(f, i / state);
    if (n < 0 || (f->p->flag_kind && f->p->flags[n] == 0)) test_tensor_set(&f->initial, i, (double)NAN);
  }
  test_tensor *tokens[] = {&f->f.q, &f->f.k, &f->f.v};
  for (int t = 0; t < 3; t++) {
    const int64_t row = tokens[t]->count / (f->c.B * f->c.T > 0 ? f->c.B * f->c.T : 1);
    for (int64_t i = 0; i < tokens[t]->count; i++) {
      int64_t n = f->c.bounds_kind ? 0 : i / row / f->c.T;
      while (f->c.bounds_kind && n < f->f.N && i / row >= f->c.bounds[n + 1]) n++;
      if (n == f->f.N || is_padding(f->p, n)) test_tensor_set(tokens[t], i, (double)NAN);
    }
  }
}

static inline void make_pool_fixture(pool_fixture *f, const pool_case *p, uint64_t seed) {
  memset(f, 0, sizeof *f);
  f->p = p;
  f->c = p->c;
  f->c.initial_state = false;
  f->c.final_state = FINAL_ABSENT;
  make_fixture(&f->f, &f->c, seed);
  const int64_t N = f->f.N, shape[4] = {p->P ? p->P : N, f->c.HV, f->c.V, f->c.K};
  test_rng rng = {seed + 77};
  if (p->c.initial_state) {
    make_pool(&f->initial, shape, p->pad);
    test_tensor_fill_normal(&f->initial, &rng, 1.0);
  }
  if (p->c.final_state == FINAL_OWN) make_pool(&f->final, shape, p->pad + 1);
  make_vector(&f->indices, p->P ? p->index_kind : (tigon_kind)0, N, p->slots);
  make_vector(&f->flags, p->flag_kind, N, p->flags);
  make_vector(&f->begin, p->begin_kind, N + 1, p->begin);
  make_vector(&f->lengths, p->length_kind, N, p->lengths);
  if (p->every) make_pool(&f->checkpoints, (int64_t[]){p->rows, f->c.HV, f->c.V, f->c.K}, p->pad);
  poison(f);
}

static inline void free_pool_fixture(pool_fixture *f) {
  test_tensor *all[] = {&f->initial, &f->final, &f->indices, &f->flags, &f->checkpoints, &f->begin, &f->lengths};
  for (int i = 0; i < 7; i++) {
    if (all[i]->block) test_tensor_check_surroundings(all[i]);
    test_tensor_free(all[i]);
  }
  free_fixture(&f->f);
}

/* The pool that is written; NULL: none. */
static inline test_tensor *written_pool(pool_fixture *f) {
  return f->p->c.final_state == FINAL_ALIAS ? &f->initial : f->p->c.final_state == FINAL_OWN ? &f->final : NULL;
}

static inline DLTensor *mutable_or_null(test_tensor *t) { return t && t->block ? &t->tensor.dl : NULL; }

static inline tigon_lightning_attention_args pool_args(pool_fixture *f) {
  tigon_lightning_attention_args args = forward_args(&f->f);
  args.initial_state = present(&f->initial);
  args.final_state = mutable_or_null(written_pool(f));
  args.state_indices = present(&f->indices);
  args.has_initial_state = present(&f->flags);
  args.checkpoints = mutable_or_null(&f->checkpoints);
  args.checkpoint_begin = present(&f->begin);
  args.checkpoint_every = f->p->every;
  return args;
}

static inline tigon_lightning_attention_state_args state_args(pool_fixture *f) {
  return (tigon_lightning_attention_state_args){.size = sizeof(tigon_lightning_attention_state_args),
                                                .k = &f->f.k.tensor.dl,
                                                .v = &f->f.v.tensor.dl,
                                                .decay = &f->f.decay.tensor.dl,
                                                .cu_seqlens = present(&f->f.cu_seqlens),
                                                .lengths = present(&f->lengths),
                                                .initial_state = present(&f->initial),
                                                .state_indices = present(&f->indices),
                                                .has_initial_state = present(&f->flags),
                                                .final_state = mutable_or_null(written_pool(f))};
}

static inline void call_forward(const tigon_lightning_attention_args *args, int threads, tigon_context *context) {
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  uint64_t bytes;
  test_expect_status(tigon_lightning_attention_workspace(&exec, args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  w.exec.context = context;
  test_expect_status(tigon_lightning_attention(&w.exec, args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

static inline void call_state(const tigon_lightning_attention_state_args *args, int threads, tigon_context *context) {
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  uint64_t bytes;
  test_expect_status(tigon_lightning_attention_state_workspace(&exec, args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  w.exec.context = context;
  test_expect_status(tigon_lightning_attention_state(&w.exec, args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

/* Inputs of the oracle as they are now. */
static inline void read_pool_inputs(oracle_inputs *o, const pool_fixture *f) {
  read_inputs(o, &f->f);
  o->initial_state = values_or_null(&f->initial);
  o->in.initial_state = o->initial_state;
  o->in.slots = f->p->P ? f->p->slots : NULL;
  o->in.has = f->p->flag_kind ? f->p->flags : NULL;
  o->in.pool = f->p->P;
}

/* Number of tokens of sequence n. */
static inline int64_t tokens_of(const pool_fixture *f, int64_t n) {
  return f->c.bounds_kind ? f->c.bounds[n + 1] - f->c.bounds[n] : f->c.T;
}

static inline double state_bound(void) { return 1e-5; }

#endif
