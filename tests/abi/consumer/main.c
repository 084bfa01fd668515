/* Normalises one row; fails where the result is not what the formula gives. */
#include <math.h>
#include <stdio.h>
#include <tigon/tigon.h>

int main(void) {
  float x[2] = {3, 4}, out[2];
  tigon_tensor x_tensor, out_tensor;
  tigon_rms_norm_args args = {.size = sizeof args};
  args.x = tigon_tensor_2d(&x_tensor, x, tigon_f32(), 1, 2);
  args.out = tigon_tensor_2d(&out_tensor, out, tigon_f32(), 1, 2);
  if (tigon_rms_norm(NULL, &args) != TIGON_OK) {
    fprintf(stderr, "%s\n", tigon_last_error());
    return 1;
  }
  printf("%s\n", tigon_version());
  return fabs(out[0] - 3 / sqrt(12.5)) < 1e-6 && fabs(out[1] - 4 / sqrt(12.5)) < 1e-6 ? 0 : 1;
}
