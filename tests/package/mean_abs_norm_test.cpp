// The norm of CONTRIBUTING.md: what a contributor copies must be right.
#include "package/mean_abs_norm.hpp"

#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/gradient_check.hpp"

#include <cmath>
#include <vector>

namespace ek = evenkeel;

namespace {

using RowMajor = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr ek::Index rows = 3;

/// The formula with a loop, of x, (rows, features), and weight, (features).
std::vector<double> formula(const std::vector<double>& x, const std::vector<double>& weight, double eps) {
  std::vector<double> y(x.size());
  const std::size_t features = weight.size();
  for (std::size_t r = 0; r < x.size() / features; ++r) {
    double sum = 0;
    for (std::size_t i = 0; i < features; ++i) sum += std::abs(x[r * features + i]);
    for (std::size_t i = 0; i < features; ++i)
      y[r * features + i] = x[r * features + i] / (sum / static_cast<double>(features) + eps) * weight[i];
  }
  return y;
}

std::vector<double> joined(std::vector<double> a, const std::vector<double>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("mean abs norm: CONTRIBUTING's example equals its formula, and its gradients are those of it") {
  const double eps = 1e-3;
  for (const ek::Index features : {1, 7, 16, 37}) {
    INFO(features << " features");
    const auto size = static_cast<std::size_t>(rows * features);
    const auto x = support::normal<double>(size, 1, 2.0), dy = support::normal<double>(size, 2, 1.0);
    const auto weight = support::normal<double>(static_cast<std::size_t>(features), 3, 0.5);

    MeanAbsNorm<double> norm(features, {.eps = eps});
    for (ek::Index i = 0; i < features; ++i) norm.weight.value()[i] = weight[static_cast<std::size_t>(i)];
    using Map = Eigen::Map<const RowMajor>;
    RowMajor y(rows, features), dx(rows, features);
    norm.forward(ek::serial, Map(x.data(), rows, features), y);
    norm.backward(ek::serial, Map(dy.data(), rows, features), Map(x.data(), rows, features), dx);

    const std::vector<double> expected = formula(x, weight, eps);
    for (std::size_t i = 0; i < size; ++i)
      CHECK(y.data()[i] == Approx(expected[i]).epsilon(1e-13));  // some tens of roundings of double
    const auto loss = [&](const std::vector<double>& point) {
      const auto parameters = point.begin() + static_cast<std::ptrdiff_t>(size);
      return support::weighted_sum(formula({point.begin(), parameters}, {parameters, point.end()}, eps), dy);
    };
    const std::vector<double> gradient =
        joined({dx.data(), dx.data() + size}, {norm.weight.gradient(), norm.weight.gradient() + features});
    CHECK(support::gradient_distance(gradient, support::central_differences(loss, joined(x, weight))) <
          support::gradient_tolerance);
  }
}
