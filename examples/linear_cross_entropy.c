/* The loss of a vocabulary held by two ranks: each makes a partial of its rows, all merge the partials, and each makes
 * its own gradients. Both ranks live in this process; over a network the partials are all-gathered and dx is
 * all-reduced. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tigon/tigon.h>

enum {
  TOKENS = 4,
  WIDTH = 8,
  CLASSES = 50,
  ROWS = 64,
  RANKS = 2,
  SHARD = ROWS / RANKS
}; // 50 classes in a table of 64 rows

static float x[TOKENS * WIDTH], head[ROWS * WIDTH], partials[RANKS * TOKENS * 8];
static float loss[TOKENS], lse[TOKENS], whole_loss[TOKENS], d_loss = 1.0f / TOKENS;
static float dx_part[TOKENS * WIDTH], dx[TOKENS * WIDTH], d_head[ROWS * WIDTH];
static int32_t target[TOKENS] = {3, 49, -100, 31}, argmax[TOKENS];

static tigon_exec exec = {.size = sizeof exec};

static void check(tigon_status status) {
  if (status == TIGON_OK) return;
  fprintf(stderr, "%s\n", tigon_last_error());
  exit(1);
}

static void make_workspace(uint64_t bytes) {
  free(exec.workspace);
  exec.workspace = aligned_alloc(256, bytes);
  exec.workspace_bytes = bytes;
}

/* Rows [begin, begin + rows) of the table, and the options, which are the same on every rank. */
static tigon_linear_cross_entropy_args forward_args(tigon_tensor t[3], int64_t begin, int64_t rows) {
  tigon_linear_cross_entropy_args args = {.size = sizeof args, .softcap = 30, .label_smoothing = 0.1f};
  args.x = tigon_tensor_2d(&t[0], x, tigon_f32(), TOKENS, WIDTH);
  args.weight = tigon_tensor_2d(&t[1], head + begin * WIDTH, tigon_f32(), rows, WIDTH);
  args.target = tigon_tensor_1d(&t[2], target, tigon_i32(), TOKENS); // classes, also those of other ranks
  args.vocab_begin = begin;
  args.vocab_size = CLASSES;
  return args;
}

static void run_forward(const tigon_linear_cross_entropy_args *args) {
  uint64_t bytes;
  check(tigon_linear_cross_entropy_workspace(&exec, args, &bytes));
  make_workspace(bytes);
  check(tigon_linear_cross_entropy(&exec, args));
}

static void merge(void) {
  tigon_tensor t[5];
  tigon_linear_cross_entropy_merge_args args = {.size = sizeof args, .label_smoothing = 0.1f, .vocab_size = CLASSES};
  args.partials = tigon_tensor_3d(&t[0], partials, tigon_f32(), RANKS, TOKENS, 8);
  args.target = tigon_tensor_1d(&t[1], target, tigon_i32(), TOKENS);
  args.loss = tigon_tensor_1d(&t[2], loss, tigon_f32(), TOKENS);
  args.lse = tigon_tensor_1d(&t[3], lse, tigon_f32(), TOKENS);
  args.argmax = tigon_tensor_1d(&t[4], argmax, tigon_i32(), TOKENS);
  uint64_t bytes;
  check(tigon_linear_cross_entropy_merge_workspace(&exec, &args, &bytes));
  make_workspace(bytes);
  check(tigon_linear_cross_entropy_merge(&exec, &args));
}

/* The gradient of the mean over tokens; dx of this rank is a part of the sum. */
static void run_backward(int64_t begin) {
  tigon_tensor t[7];
  const tigon_linear_cross_entropy_args forward = forward_args(t, begin, SHARD);
  tigon_linear_cross_entropy_backward_args args = {.size = sizeof args,
                                                   .x = forward.x,
                                                   .weight = forward.weight,
                                                   .target = forward.target,
                                                   .vocab_begin = begin,
                                                   .vocab_size = CLASSES,
                                                   .softcap = forward.softcap,
                                                   .label_smoothing = forward.label_smoothing};
  args.d_loss = tigon_tensor_1d(&t[3], &d_loss, tigon_f32(), TOKENS);
  t[3].strides[0] = 0;                                         // one value for all tokens
  args.lse = tigon_tensor_1d(&t[4], lse, tigon_f32(), TOKENS); // of all classes
  args.dx = tigon_tensor_2d(&t[5], dx_part, tigon_f32(), TOKENS, WIDTH);
  args.dweight = tigon_tensor_2d(&t[6], d_head + begin * WIDTH, tigon_f32(), SHARD, WIDTH);
  uint64_t bytes;
  check(tigon_linear_cross_entropy_backward_workspace(&exec, &args, &bytes));
  make_workspace(bytes);
  check(tigon_linear_cross_entropy_backward(&exec, &args));
  for (int i = 0; i < TOKENS * WIDTH; i++) dx[i] += dx_part[i];
}

int main(void) {
  for (int i = 0; i < TOKENS * WIDTH; i++) x[i] = sinf((float)(3 * i + 1));
  for (int i = 0; i < ROWS * WIDTH; i++)
    head[i] = i < CLASSES * WIDTH ? cosf((float)(7 * i)) : NAN; // rows of padding count nowhere
  tigon_tensor t[4];
  for (int64_t rank = 0; rank < RANKS; rank++) {
    tigon_linear_cross_entropy_args args = forward_args(t, rank * SHARD, SHARD);
    args.partial = tigon_tensor_2d(&t[3], partials + rank * TOKENS * 8, tigon_f32(), TOKENS, 8);
    run_forward(&args);
  }
  merge();
  for (int64_t rank = 0; rank < RANKS; rank++) run_backward(rank * SHARD);

  tigon_linear_cross_entropy_args whole = forward_args(t, 0, ROWS);
  whole.loss = tigon_tensor_1d(&t[3], whole_loss, tigon_f32(), TOKENS);
  run_forward(&whole);
  free(exec.workspace);
  for (int i = 0; i < TOKENS; i++) {
    printf("token %d: loss %.4f, of the whole %.4f, argmax %d, dx %.4f ...\n", i, loss[i], whole_loss[i], argmax[i],
           dx[i * WIDTH]);
    if (!(fabsf(loss[i] - whole_loss[i]) < 1e-5f && isfinite(dx[i * WIDTH]))) return 1;
  }
  return d_head[CLASSES * WIDTH] == 0 ? 0 : 1;
}
