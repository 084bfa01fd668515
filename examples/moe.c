/* A mixture-of-experts layer as in DeepSeek-V3: sigmoid scores, a selection bias, two of four groups, weights that sum
 * to 2.5; forward, and the gradients of its output's sum, the balance loss and the z loss. Experts in the layout (E, D,
 * 2I). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tigon/tigon.h>

enum { TOKENS = 6, WIDTH = 16, INNER = 8, EXPERTS = 8, CHOICES = 3 };

static float x[TOKENS * WIDTH], logits[TOKENS * EXPERTS], bias[EXPERTS];
static float gate_up[EXPERTS * WIDTH * 2 * INNER], down[EXPERTS * INNER * WIDTH], out[TOKENS * WIDTH];
static float weights[TOKENS * CHOICES], balance_loss, z_loss, one = 1, small = 0.001f;
static float dout[TOKENS * WIDTH], dx[TOKENS * WIDTH], d_weights[TOKENS * CHOICES], d_logits[TOKENS * EXPERTS];
static float d_gate_up[EXPERTS * WIDTH * 2 * INNER], d_down[EXPERTS * INNER * WIDTH];
static int32_t ids[TOKENS * CHOICES], counts[EXPERTS];

static tigon_exec exec = {.size = sizeof exec};

static void check(tigon_status status) {
  if (status == TIGON_OK) return;
  fprintf(stderr, "%s\n", tigon_last_error());
  exit(1);
}

static void make_workspace(uint64_t bytes) {
  free(exec.workspace);
  exec.workspace = bytes ? aligned_alloc(256, bytes) : NULL;
  exec.workspace_bytes = bytes;
}

static void fill(float *values, int n, double step) {
  for (int i = 0; i < n; i++) values[i] = (float)sin(step * (i + 1));
}

static void route(void) {
  tigon_tensor t[7];
  tigon_moe_route_args args = {.size = sizeof args, .score = TIGON_MOE_SIGMOID, .renormalize = 1, .routed_scale = 2.5f};
  args.logits = tigon_tensor_2d(&t[0], logits, tigon_f32(), TOKENS, EXPERTS);
  args.selection_bias = tigon_tensor_1d(&t[1], bias, tigon_f32(), EXPERTS);
  args.n_group = 4;
  args.topk_group = 2;
  args.topk_ids = tigon_tensor_2d(&t[2], ids, tigon_i32(), TOKENS, CHOICES);
  args.topk_weights = tigon_tensor_2d(&t[3], weights, tigon_f32(), TOKENS, CHOICES);
  args.counts = tigon_tensor_1d(&t[4], counts, tigon_i32(), EXPERTS);
  args.balance_loss = tigon_tensor_1d(&t[5], &balance_loss, tigon_f32(), 1);
  args.z_loss = tigon_tensor_1d(&t[6], &z_loss, tigon_f32(), 1);
  uint64_t bytes;
  check(tigon_moe_route_workspace(&exec, &args, &bytes));
  make_workspace(bytes);
  check(tigon_moe_route(&exec, &args));
}

static void experts(void) {
  tigon_tensor t[12];
  tigon_moe_args args = {.size = sizeof args, .weight_layout = TIGON_MOE_LAYOUT_TRANSPOSED};
  args.x = tigon_tensor_2d(&t[0], x, tigon_f32(), TOKENS, WIDTH);
  args.topk_ids = tigon_tensor_2d(&t[1], ids, tigon_i32(), TOKENS, CHOICES);
  args.topk_weights = tigon_tensor_2d(&t[2], weights, tigon_f32(), TOKENS, CHOICES);
  args.gate_up = tigon_tensor_3d(&t[3], gate_up, tigon_f32(), EXPERTS, WIDTH, 2 * INNER);
  args.down = tigon_tensor_3d(&t[4], down, tigon_f32(), EXPERTS, INNER, WIDTH);
  args.out = tigon_tensor_2d(&t[5], out, tigon_f32(), TOKENS, WIDTH);
  uint64_t bytes;
  check(tigon_moe_saved(&exec, &args, &args.saved_bytes));
  args.saved = aligned_alloc(256, args.saved_bytes);
  check(tigon_moe_workspace(&exec, &args, &bytes));
  make_workspace(bytes);
  check(tigon_moe(&exec, &args));

  tigon_moe_backward_args back = {.size = sizeof back, .weight_layout = args.weight_layout};
  back.dout = tigon_tensor_2d(&t[6], dout, tigon_f32(), TOKENS, WIDTH);
  back.x = args.x;
  back.topk_ids = args.topk_ids;
  back.topk_weights = args.topk_weights;
  back.gate_up = args.gate_up;
  back.down = args.down;
  back.saved = args.saved;
  back.saved_bytes = args.saved_bytes;
  back.dx = tigon_tensor_2d(&t[7], dx, tigon_f32(), TOKENS, WIDTH);
  back.d_topk_weights = tigon_tensor_2d(&t[8], d_weights, tigon_f32(), TOKENS, CHOICES);
  back.d_gate_up = tigon_tensor_3d(&t[9], d_gate_up, tigon_f32(), EXPERTS, WIDTH, 2 * INNER);
  back.d_down = tigon_tensor_3d(&t[10], d_down, tigon_f32(), EXPERTS, INNER, WIDTH);
  check(tigon_moe_backward_workspace(&exec, &back, &bytes));
  make_workspace(bytes);
  check(tigon_moe_backward(&exec, &back));
  free(args.saved);
}

static void route_backward(void) {
  tigon_tensor t[6];
  tigon_moe_route_backward_args args = {.size = sizeof args, .score = TIGON_MOE_SIGMOID, .renormalize = 1};
  args.routed_scale = 2.5f;
  args.logits = tigon_tensor_2d(&t[0], logits, tigon_f32(), TOKENS, EXPERTS);
  args.topk_ids = tigon_tensor_2d(&t[1], ids, tigon_i32(), TOKENS, CHOICES);
  args.d_topk_weights = tigon_tensor_2d(&t[2], d_weights, tigon_f32(), TOKENS, CHOICES);
  args.d_balance_loss = tigon_tensor_1d(&t[3], &one, tigon_f32(), 1);
  args.d_z_loss = tigon_tensor_1d(&t[4], &small, tigon_f32(), 1);
  args.d_logits = tigon_tensor_2d(&t[5], d_logits, tigon_f32(), TOKENS, EXPERTS);
  uint64_t bytes;
  check(tigon_moe_route_backward_workspace(&exec, &args, &bytes));
  make_workspace(bytes);
  check(tigon_moe_route_backward(&exec, &args));
}

int main(void) {
  fill(x, TOKENS * WIDTH, 0.7);
  fill(logits, TOKENS * EXPERTS, 1.3);
  fill(bias, EXPERTS, 0.1);
  fill(gate_up, EXPERTS * WIDTH * 2 * INNER, 0.37);
  fill(down, EXPERTS * INNER * WIDTH, 0.23);
  for (int i = 0; i < TOKENS * WIDTH; i++) dout[i] = 1;
  route();
  experts();
  route_backward();
  free(exec.workspace);
  float sum = 0, d_sum = 0;
  for (int i = 0; i < CHOICES; i++) sum += weights[i];
  for (int i = 0; i < EXPERTS; i++) d_sum += fabsf(d_logits[i]);
  printf("token 0: experts %d %d %d, weights sum to %.3f; balance loss %.3f, z loss %.3f\n", (int)ids[0], (int)ids[1],
         (int)ids[2], (double)sum, (double)balance_loss, (double)z_loss);
  return d_sum > 0 && fabsf(sum - 2.5f) < 1e-5f ? 0 : 1;
}
