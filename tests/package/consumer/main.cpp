// A trainer's first program: one norm, forward and backward, and a line that is the same whichever way evenkeel came.
#if defined(SINGLE_HEADER)
#include "evenkeel.hpp"
#elif defined(ONE_NORM)
#include "evenkeel/norms/rms_norm.hpp"
#else
#include "evenkeel/evenkeel.hpp"
#endif

#include "units.hpp"

#include <cstdio>

namespace ek = evenkeel;

int main() {
  using Rows = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Index rows = 3, features = 40;
  Rows x(rows, features), y(rows, features), dx(rows, features);
  for (Eigen::Index i = 0; i < x.size(); ++i) x(i) = static_cast<float>(i % 7) - 2.5f;
  const Eigen::ArrayXf weight = Eigen::ArrayXf::LinSpaced(features, 0.5f, 1.5f);
  Eigen::ArrayXf dweight = Eigen::ArrayXf::Zero(features);

  ek::RmsNormSaved<float> saved;
  ek::rms_norm(ek::serial, x, weight, y, saved);
  ek::rms_norm_backward(ek::serial, y, x, weight, saved, dx, dweight);
  std::printf("evenkeel %d.%d.%d:", EVENKEEL_VERSION_MAJOR, EVENKEEL_VERSION_MINOR, EVENKEEL_VERSION_PATCH);
  for (Eigen::Index i = 0; i < 4; ++i)
    std::printf(" %a %a %a", static_cast<double>(y(i)), static_cast<double>(dx(i)), static_cast<double>(dweight(i)));
  std::printf("\n");
  return run_on_device();
}
