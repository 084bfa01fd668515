#include <stdio.h>
#include <tigon/tigon.h>

int main(void) {
  float x[8] = {1, 2, 3, 4, 8, 7, 6, 5}, weight[4] = {1, 1, 1, 2}, out[8];
  tigon_tensor x_tensor, weight_tensor, out_tensor;
  tigon_rms_norm_args args = {.size = sizeof args};
  args.x = tigon_tensor_2d(&x_tensor, x, tigon_f32(), 2, 4); // (M, H)
  args.weight = tigon_tensor_1d(&weight_tensor, weight, tigon_f32(), 4);
  args.out = tigon_tensor_2d(&out_tensor, out, tigon_f32(), 2, 4);
  if (tigon_rms_norm(NULL, &args) != TIGON_OK) { // NULL: on the CPU, with all threads
    fprintf(stderr, "%s\n", tigon_last_error());
    return 1;
  }
  printf("%.3f %.3f %.3f %.3f\n", out[0], out[1], out[2], out[3]); /* prints: 0.365 0.730 1.095 2.921 */
  return out[3] > 2.920f && out[3] < 2.922f ? 0 : 1;
}
