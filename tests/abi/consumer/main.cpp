// Normalises one row; fails where the result is not what the formula gives.
#include <cmath>
#include <cstdio>
#include <tigon/tigon.h>
#include <vector>

int main() {
  std::vector<float> x = {3, 4}, out(2);
  tigon_tensor x_tensor, out_tensor;
  tigon_rms_norm_args args = {};
  args.size = sizeof args;
  args.x = tigon_tensor_2d(&x_tensor, x.data(), tigon_f32(), 1, 2);
  args.out = tigon_tensor_2d(&out_tensor, out.data(), tigon_f32(), 1, 2);
  if (tigon_rms_norm(nullptr, &args) != TIGON_OK) {
    std::fprintf(stderr, "%s\n", tigon_last_error());
    return 1;
  }
  std::printf("%s\n", tigon_version());
  return std::fabs(out[0] - 3 / std::sqrt(12.5)) < 1e-6 && std::fabs(out[1] - 4 / std::sqrt(12.5)) < 1e-6 ? 0 : 1;
}
