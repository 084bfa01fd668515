/* QK normalisation: the query heads of a fused projection, (T, 3, N, H), are normalised where they lie; then the
 * gradients of a layer whose weight gradient is kept in float32. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tigon/tigon.h>

enum { TOKENS = 4, HEADS = 2, WIDTH = 64, FUSED = 3 * HEADS * WIDTH };

static int failed(void) {
  fprintf(stderr, "%s\n", tigon_last_error());
  return 1;
}

int main(void) {
  static float qkv[TOKENS * FUSED], dy[TOKENS * HEADS * WIDTH], dx[TOKENS * HEADS * WIDTH];
  float weight[WIDTH], rstd[TOKENS * HEADS], main_grad[WIDTH] = {0};
  for (int i = 0; i < TOKENS * FUSED; i++) qkv[i] = (float)(i % 17) - 8;
  for (int i = 0; i < TOKENS * HEADS * WIDTH; i++) dy[i] = 1;
  for (int i = 0; i < WIDTH; i++) weight[i] = 1;

  tigon_tensor q, out, w, statistics, upstream, gradient, weight_gradient;
  tigon_tensor_3d(&q, qkv, tigon_f32(), TOKENS, HEADS, WIDTH);
  q.strides[0] = FUSED; /* from token to token */
  tigon_rms_norm_args forward = {.size = sizeof forward, .eps = 1e-5f};
  forward.x = &q.dl;
  forward.weight = tigon_tensor_1d(&w, weight, tigon_f32(), WIDTH);
  static float normed[TOKENS * HEADS * WIDTH];
  forward.out = tigon_tensor_3d(&out, normed, tigon_f32(), TOKENS, HEADS, WIDTH);
  forward.rstd = tigon_tensor_2d(&statistics, rstd, tigon_f32(), TOKENS, HEADS);
  if (tigon_rms_norm(NULL, &forward) != TIGON_OK) return failed();

  tigon_rms_norm_backward_args backward = {.size = sizeof backward, .accumulate_d_weight = 1};
  backward.dy = tigon_tensor_3d(&upstream, dy, tigon_f32(), TOKENS, HEADS, WIDTH);
  backward.x = &q.dl;
  backward.weight = &w.dl;
  backward.rstd = &statistics.dl;
  backward.dx = tigon_tensor_3d(&gradient, dx, tigon_f32(), TOKENS, HEADS, WIDTH);
  backward.d_weight = tigon_tensor_1d(&weight_gradient, main_grad, tigon_f32(), WIDTH);
  tigon_exec exec = {.size = sizeof exec};
  if (tigon_rms_norm_backward_workspace(&exec, &backward, &exec.workspace_bytes) != TIGON_OK) return failed();
  exec.workspace = aligned_alloc(256, exec.workspace_bytes);
  if (!exec.workspace || tigon_rms_norm_backward(&exec, &backward) != TIGON_OK) return failed();
  free(exec.workspace);

  /* Out of place first, to be compared with; now where the queries lie. */
  forward.out = &q.dl;
  if (tigon_rms_norm(NULL, &forward) != TIGON_OK) return failed();
  double square = 0, along = 0;
  for (int i = 0; i < WIDTH; i++) {
    if (qkv[FUSED + i] != normed[HEADS * WIDTH + i]) return 1;
    square += (double)normed[i] * (double)normed[i];
    along += (double)dx[i] * (double)normed[i]; /* a longer row has the same output, so dx is orthogonal to it */
  }
  if (qkv[HEADS * WIDTH] != (float)(HEADS * WIDTH % 17) - 8) return 1; /* the keys are as they were */
  printf("mean square %.4f, gradient along the row %.4f, weight gradient %.3f\n", square / WIDTH, along,
         (double)main_grad[0]);
  return fabs(square / WIDTH - 1) < 1e-5 && fabs(along) < 1e-4 ? 0 : 1;
}
