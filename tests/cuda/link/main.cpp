// A program of one unit that the host compiler compiles and one that nvcc does. Both use evenkeel, on their own device,
// and are linked into one program.

#include "evenkeel/evenkeel.hpp"
#include "units.hpp"

#include <cmath>
#include <cstdio>

namespace ek = evenkeel;

std::vector<float> normalize_on_host(const std::vector<float>& x, int rows, int features) {
  using Rows = Eigen::Map<const Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  std::vector<float> y(x.size());
  Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> out(y.data(), rows, features);
  ek::rms_norm(ek::serial, Rows(x.data(), rows, features), ek::none, out, ek::none);
  return y;
}

int main() {
  const int rows = 3, features = 40;
  std::vector<float> x(rows * features);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 2.5f;
  const std::vector<float> expected = normalize_on_host(x, rows, features);
  try {
    const std::vector<float> y = normalize_on_device(x, rows, features);
    float largest = 0;
    for (std::size_t i = 0; i < y.size(); ++i) largest = std::max(largest, std::abs(y[i] - expected[i]));
    std::printf("on the device, largest difference %g\n", static_cast<double>(largest));
    return has_device() && largest < 1e-6f ? 0 : 1;
  } catch (const ek::CudaError& error) {
    std::printf("CudaError: %s\n", error.what());
    return has_device() ? 1 : 0;
  }
}
