#include "evenkeel/norms/rms_norm.hpp"

#include <cmath>

int main() {
  const Eigen::ArrayXf x = Eigen::ArrayXf::LinSpaced(9, -1.0f, 3.0f);
  Eigen::ArrayXf y(9);
  evenkeel::rms_norm(evenkeel::serial, x, evenkeel::none, y, evenkeel::none);
  return std::abs(y.square().mean() - 1) < 1e-5f ? 0 : 1;
}
