#include "evenkeel/moments.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <vector>

namespace ek = evenkeel;

namespace {

template <class A>
ek::Moments<A> moments_of(const std::vector<A>& values) {
  ek::Moments<A> m;
  if (values.empty()) return m;
  m.count = static_cast<std::int64_t>(values.size());
  m.shift = values[0];
  double sum = 0, squares = 0;
  for (const A v : values) sum += double(v) - double(values[0]);
  const double delta = sum / double(values.size());
  for (const A v : values) squares += std::pow(double(v) - double(values[0]) - delta, 2);
  m.delta = static_cast<A>(delta);
  m.M2 = static_cast<A>(squares);
  return m;
}

}  // namespace

TEMPLATE_TEST_CASE("moments: merging two sets gives the moments of both together", "", float, double) {
  using A = TestType;
  const auto a = moments_of<A>({3, 5, 4, 6, 2}), b = moments_of<A>({11, 9, 10, 14, 8, 12, 13});
  for (const auto& both : {ek::merge(a, b), ek::merge(b, a)}) {
    CHECK(both.count == 12);
    CHECK(both.mean() == Approx(97.0 / 12).epsilon(4 * std::numeric_limits<A>::epsilon()));
    CHECK(both.M2 == Approx(2171.0 / 12).epsilon(4 * std::numeric_limits<A>::epsilon()));
    CHECK(both.variance() == Approx(2171.0 / 144).epsilon(4 * std::numeric_limits<A>::epsilon()));
    CHECK(both.unbiased_variance() == Approx(2171.0 / 132).epsilon(4 * std::numeric_limits<A>::epsilon()));
  }
}

TEST_CASE("moments: an empty side returns the other side's bits") {
  const auto a = moments_of<float>({0.1f, 0.7f, -3.3f});
  const ek::Moments<float> empty;
  for (const auto& m : {ek::merge(a, empty), ek::merge(empty, a)}) {
    CHECK(m.count == a.count);
    CHECK(m.shift == a.shift);
    CHECK(m.delta == a.delta);
    CHECK(m.M2 == a.M2);
  }
  const auto nothing = ek::merge(empty, empty);
  CHECK(nothing.count == 0);
  CHECK(nothing.mean() == 0);
  CHECK(nothing.variance() == 0);
  CHECK(nothing.unbiased_variance() == 0);
}

TEST_CASE("moments: a mean between two floats is not lost") {
  // Mean 1e4, spread 1e-2: floats near 1e4 are 1e-3 apart, so a mean kept in one of them is off by up to 5% of the
  // spread.
  std::vector<float> low, high, all;
  for (int i = 0; i < 500; ++i) {
    const float value = 1e4f + 0.01f * std::sin(1.7f * static_cast<float>(i));
    (i < 200 ? low : high).push_back(value);
    all.push_back(value);
  }
  const auto merged = ek::merge(moments_of(low), moments_of(high)), whole = moments_of(all);
  const double mean = double(merged.shift) + double(merged.delta), expected = double(whole.shift) + double(whole.delta);
  CHECK(std::abs(mean - expected) < 1e-7);
  CHECK(merged.M2 == Approx(whole.M2).epsilon(1e-5));
}

TEST_CASE("moments: one value has no spread, and two have one") {
  const ek::Moments<double> none;
  CHECK(none.M2 == 0);
  const auto one = moments_of<double>({5}), other = moments_of<double>({8});
  CHECK(one.variance() == 0);
  CHECK(one.unbiased_variance() == 0);
  for (const auto& both : {ek::merge(one, other), ek::merge(other, one)}) {
    CHECK(both.count == 2);
    CHECK(both.mean() == 6.5);
    CHECK(both.M2 == 4.5);
    CHECK(both.unbiased_variance() == 4.5);
  }
}
