#include "evenkeel/init/variance_scaling.hpp"
#include "init/torch_values.hpp"
#include "support/catch.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

namespace ek = evenkeel;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::size_t many = 1000000, few = 100000;
const ek::RandomStream stream(42, "weight");

template <class Real>
Real cdf(Real x) {
  return Real(0.5) * std::erfc(-x / std::sqrt(Real(2)));
}

// What a normal distribution cut at `a` and `b` has, in standard deviations of the uncut one: integrals by Simpson's
// rule, not the closed form of the library.
struct Cut {
  double mass = 0, mean = 0, variance = 0;
};

Cut cut_at(double a, double b) {
  a = std::max(a, -12.0), b = std::min(b, 12.0);
  constexpr int n = 20000;
  const double h = (b - a) / n;
  Cut cut;
  double squares = 0;
  for (int i = 0; i <= n; ++i) {
    const double x = a + i * h, weight = (i == 0 || i == n ? 1 : i % 2 ? 4 : 2) * h / 3 * std::exp(-x * x / 2);
    cut.mass += weight, cut.mean += weight * x, squares += weight * x * x;
  }
  cut.mean /= cut.mass;
  cut.variance = squares / cut.mass - cut.mean * cut.mean;
  return cut;
}

// The largest distance between the share of values up to x and the probability of it, times sqrt(n): above 1.63 for one
// seed in a hundred (A. Kolmogorov, 1933).
template <class T, class Cdf>
double kolmogorov_smirnov(std::vector<T> values, const Cdf& probability) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  double largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double p = double(probability(double(values[i])));
    largest = std::max({largest, std::abs(p - double(i) / n), std::abs(p - double(i + 1) / n)});
  }
  return largest * std::sqrt(n);
}

template <class T>
void check_moments(const std::vector<T>& values, double mean, double std) {
  const double n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const T v : values) sum += double(v);
  for (const T v : values) squares += (double(v) - sum / n) * (double(v) - sum / n);
  CHECK(std::abs(sum / n - mean) < 4 * std / std::sqrt(n));
  // Distributions without tails have lighter fourth moments than a normal one, whose bound this is.
  CHECK(std::abs(std::sqrt(squares / n) / std - 1) < 4 / std::sqrt(2 * n));
}

template <class T>
void check_truncated(std::size_t count, double mean, double std, double lower, double upper) {
  INFO("N(" << mean << ", " << std << ") from " << lower << " to " << upper);
  std::vector<T> values(count);
  ek::truncated_normal(values, stream, {.mean = mean, .std = std, .lower = lower, .upper = upper});
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  CHECK(double(*least) >= double(static_cast<T>(lower)));
  CHECK(double(*most) <= double(static_cast<T>(upper)));
  const double a = (lower - mean) / std, b = (upper - mean) / std;
  const Cut cut = cut_at(a, b);
  check_moments(values, mean + std * cut.mean, std * std::sqrt(cut.variance));
  const double sign = a > 0 ? -1 : 1;  // in the right tail the plain difference would lose digits
  const double begin = cdf(sign * a), mass = cdf(sign * b) - begin;
  const auto probability = [&](double x) { return (cdf(sign * (x - mean) / std) - begin) / mass; };
  CHECK(kolmogorov_smirnov(values, probability) < 1.63);
}

}  // namespace

TEST_CASE("the quantile function inverts the cumulative distribution function, in both tails") {
  for (double p = 1e-300; p <= 0.5; p *= 1.7) {
    const double x = ek::detail::lower_normal_quantile(p);
    // An ulp of x moves the probability by |x| ulp of it, as its density is about |x| times as large.
    INFO(p);
    CHECK(std::abs(double(cdf<long double>(x) / p) - 1) < 4e-16 * (2 + x * x));
  }
  CHECK(std::abs(ek::detail::lower_normal_quantile(0.5)) < 1e-16);
  const ek::detail::TruncatedNormal whole(0, 1, -infinity, infinity), right(0, 1, 30, 31), left(0, 1, -31, -30);
  for (const double u : {0x1p-33, 1e-6, 0.1, 0.25, 0.5, 0.75, 1 - 0x1p-33}) {
    INFO(u);
    CHECK(std::abs(double(cdf<long double>(whole(u))) / u - 1) < 1e-14);
    CHECK(std::abs(whole(u) + whole(1 - u)) <= 1e-10 * std::abs(whole(u)) + 1e-16);  // 1 - u is rounded
    CHECK(std::abs(right(u) + left(1 - u)) < 1e-10);
    const auto beyond = [](double x) { return cdf<long double>(-x); };
    const long double out = (beyond(30) - beyond(right(u))) / (beyond(30) - beyond(31));
    CHECK(std::abs(double(out) - u) < 1e-12);
  }
}

TEST_CASE("what a quantile function is given lies between 0 and 1, as close to either") {
  const ek::PhiloxBlock least{{0, 0, 0, 0}}, most{{~0u, ~0u, ~0u, ~0u}};
  double low[4], high[4];
  ek::detail::BlockDraws<float>::open_uniforms(least, low);
  ek::detail::BlockDraws<float>::open_uniforms(most, high);
  CHECK(low[0] == 0x1p-33);
  CHECK(high[3] == 1 - 0x1p-33);
  ek::detail::BlockDraws<double>::open_uniforms(least, low);
  ek::detail::BlockDraws<double>::open_uniforms(most, high);
  CHECK(low[0] == 0x1p-53);
  CHECK(high[1] == 1 - 0x1p-53);
}

TEST_CASE("truncated values lie within their bounds however narrow") {
  for (int i = 0; i < 1000; ++i) {
    const double lower = 0.1 + 0.37e-3 * i, upper = std::nextafter(lower, 1.0);
    const ek::detail::TruncatedNormal narrow(0.2, 0.07, lower, upper);
    for (const double u : {0x1p-53, 0.3, 1 - 0x1p-53}) {
      CHECK(narrow(u) >= lower);
      CHECK(narrow(u) <= upper);
    }
  }
}

TEST_CASE("a million values have the distribution that they should have") {
  std::vector<double> values(many);
  ek::uniform(values, -0.3, 0.7, stream);
  CHECK(kolmogorov_smirnov(values, [](double x) { return x + 0.3; }) < 1.63);
  check_moments(values, 0.2, std::sqrt(1.0 / 12));
  ek::normal(values, 0.5, 2, stream);
  CHECK(kolmogorov_smirnov(values, [](double x) { return cdf((x - 0.5) / 2); }) < 1.63);
  check_moments(values, 0.5, 2);
  check_truncated<double>(many, 0, 1, -2, 2);
  check_truncated<double>(few, 1, 0.5, 0.75, 3);
  check_truncated<double>(few, 0, 1, 4, 8);  // one tail
  check_truncated<float>(many, 0.1, 0.02, 0.08, 0.11);
  check_truncated<float>(few, 0, 1, -infinity, -3);
  // 100 standard deviations cut nothing.
  check_truncated<float>(few, 0, 0.02, -2, 2);
}

TEST_CASE("the standard deviation after truncation") {
  CHECK(ek::truncated_normal_std() == 0.87962566103423978);
  for (const auto& [a, b] : {std::pair(-2.0, 2.0), {-1.0, 1.0}, {-3.0, 3.0}, {-1.0, 2.5}, {0.5, 1.5}, {2.0, 5.0}}) {
    const double close = std::sqrt(cut_at(a, b).variance);
    INFO(a << " to " << b);
    CHECK(std::abs(ek::truncated_normal_std(a, b) / close - 1) < 1e-11);
    CHECK(std::abs(ek::truncated_normal_std(-b, -a) / close - 1) < 1e-11);
  }
  CHECK(std::abs(ek::truncated_normal_std(-2 + 1e-13, 2) / 0.87962566103423978 - 1) < 1e-12);
  CHECK(ek::truncated_normal_std(-infinity, infinity) == 1);
}

TEST_CASE("bounds in standard deviations follow std, and the correction restores it") {
  std::vector<double> values(few);
  const auto largest = [&] {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    CHECK(std::abs(*least + *most) < 1e-3 * *most);  // the mean is 0, and the bounds are symmetric
    return *most;
  };
  ek::sigma_truncated_normal(values, stream, {.std = 0.02});
  check_moments(values, 0, 0.02 * 0.87962566103423978);
  CHECK(largest() <= 0.04);
  CHECK(largest() > 0.04 * (1 - 1e-3));
  ek::sigma_truncated_normal(values, stream, {.std = 0.02, .correct_std = true});
  check_moments(values, 0, 0.02);
  CHECK(largest() <= 0.04 / 0.87962566103423978);
  ek::sigma_truncated_normal(values, stream, {.mean = 3, .std = 0.5, .lower = -1, .upper = 0.5});
  const Cut cut = cut_at(-1, 0.5);
  check_moments(values, 3 + 0.5 * cut.mean, 0.5 * std::sqrt(cut.variance));

  // The same numbers as with bounds in values.
  std::vector<double> same(few);
  ek::truncated_normal(same, stream, {.mean = 3, .std = 0.5, .lower = 2.5, .upper = 3.25});
  CHECK(values == same);
}

TEST_CASE("variance scaling has one standard deviation in three shapes") {
  std::vector<float> values(few);
  const ek::Fans fans{.in = 64, .out = 192};
  struct Row {
    ek::VarianceScalingOptions options;
    double std;
  };
  using enum ek::Spread;
  for (const Row& row : {Row{{}, 1.0 / 8}, Row{{.scale = 2, .spread = normal}, std::sqrt(2.0) / 8},
                         Row{{.scale = 3, .mode = ek::FanMode::out, .spread = uniform}, 1.0 / 8},
                         Row{{.scale = 2, .mode = ek::FanMode::average}, 1.0 / 8},
                         Row{{.mode = ek::FanMode::average, .spread = uniform}, std::sqrt(1.0 / 128)}}) {
    ek::variance_scaling(values, fans, stream, row.options);
    check_moments(values, 0, row.std);
    CHECK(ek::variance_scaling_std(fans, row.options) == Approx(row.std).epsilon(1e-14));
    const float most = *std::max_element(values.begin(), values.end());
    if (row.options.spread == truncated_normal) CHECK(most <= 2 * row.std / 0.87962566103423978 * (1 + 1e-7));
    if (row.options.spread == uniform) CHECK(most <= std::sqrt(3.0) * row.std * (1 + 1e-7));
    if (row.options.spread == normal) CHECK(most > 4 * row.std);
  }
  // The names that others have for it.
  std::vector<float> same(1000);
  values.resize(1000);
  ek::variance_scaling(values, fans, stream, {.scale = 2, .spread = normal});
  ek::kaiming_normal(same, fans, stream);
  CHECK(std::equal(same.begin(), same.end(), values.begin(),
                   [](float a, float b) { return std::abs(a - b) <= 1.2e-7f * std::abs(b); }));
  ek::variance_scaling(values, fans, stream, {.mode = ek::FanMode::average, .spread = normal});
  ek::xavier_normal(same, fans, stream);
  CHECK(values == same);
  CHECK(ek::kaiming_std(fans, {.gain = 1, .mode = ek::FanMode::average}) ==
        Approx(std::sqrt(1.0 / 128)).epsilon(1e-14));
  ek::variance_scaling(values, fans, stream, {.scale = 0});
  CHECK(std::count(values.begin(), values.end(), 0.0f) == 1000);
  ek::TorchRandom random(0);
  ek::variance_scaling(values, {.in = 3, .out = 1}, random, {.spread = uniform});  // U(-1, 1)
  CHECK(values[0] == std::fma(torch_values::rand[0], 2.0f, -1.0f));
}

TEST_CASE("truncated values do not depend on the split, and 16-bit values are rounded floats") {
  const ek::TruncatedNormalOptions options{.std = 0.02, .lower = -0.03, .upper = 0.04};
  constexpr std::size_t size = 1000 * 77 + 3;
  const auto check_splits = [&]<class T>(T) {
    std::vector<T> whole(size), parts(size);
    ek::truncated_normal(whole, stream, options);
    for (const std::size_t threads : {2u, 3u, 8u}) {
      std::vector<std::thread> workers;
      const std::size_t share = (size + threads - 1) / threads;
      for (std::size_t first = 0; first < size; first += share)
        workers.emplace_back([&, first] {
          ek::truncated_normal(parts.data() + first, ek::Index(std::min(share, size - first)), stream.from(first),
                               options);
        });
      for (std::thread& worker : workers) worker.join();
      CHECK(whole == parts);
    }
    return whole;
  };
  check_splits(0.0);
  const std::vector<float> floats = check_splits(0.0f);
  std::vector<Eigen::bfloat16> rounded(size);
  ek::truncated_normal(rounded, stream, options);
  std::size_t different = 0;
  for (std::size_t i = 0; i < size; ++i) different += float(rounded[i]) != float(Eigen::bfloat16(floats[i]));
  CHECK(different == 0);
  std::vector<float> other(size);
  ek::truncated_normal(other, ek::RandomStream(42, "another"), options);
  CHECK(other != floats);
}

TEST_CASE("truncated normals say which argument is wrong, before they write") {
  std::vector<double> w{7, 7};
  CHECK_THROWS_AS(ek::truncated_normal(w, stream, {.std = 0}), ek::ShapeError);
  CHECK_THROWS_WITH(ek::truncated_normal(w, stream, {.std = 0}),
                    "truncated_normal: std is 0, expected a finite number above 0");
  CHECK_THROWS_WITH(ek::truncated_normal(w, stream, {.mean = infinity}),
                    "truncated_normal: mean is inf, expected a finite number");
  CHECK_THROWS_WITH(ek::truncated_normal(w, stream, {.lower = 1, .upper = 1}),
                    "truncated_normal: lower is 1 and upper is 1, expected lower < upper");
  CHECK_THROWS_WITH(ek::truncated_normal(w, stream, {.std = 0.02, .lower = 1}),
                    "truncated_normal: the bounds lie 50 standard deviations from the mean, expected at most 37");
  CHECK_THROWS_WITH(ek::sigma_truncated_normal(w, stream, {.lower = -50, .upper = -40}),
                    "sigma_truncated_normal: the bounds lie 40 standard deviations from the mean, expected at most 37");
  CHECK_THROWS_WITH(ek::truncated_normal(w.data(), -1, stream), "truncated_normal: size is -1, expected at least 0");
  CHECK_THROWS_WITH(ek::truncated_normal_std(2, -2),
                    "truncated_normal_std: lower is 2 and upper is -2, expected lower < upper");
  CHECK_THROWS_WITH(ek::variance_scaling(w, {.in = 0, .out = 3}, stream),
                    "variance_scaling: fans.in is 0, expected at least 1");
  CHECK_THROWS_WITH(ek::variance_scaling(w, {.in = 2}, stream, {.mode = ek::FanMode::average}),
                    "variance_scaling: fans.out is 0, expected at least 1");
  CHECK_THROWS_WITH(ek::variance_scaling(w, {.in = 2, .out = 2}, stream, {.scale = -1}),
                    "variance_scaling: scale is -1, expected a finite number of at least 0");
  CHECK_THROWS_WITH(ek::variance_scaling_std({.in = 2}, {.mode = ek::FanMode::out}),
                    "variance_scaling_std: fans.out is 0, expected at least 1");
  ek::TorchRandom random(0);
  CHECK_THROWS_WITH(ek::variance_scaling(w, {.in = 2, .out = 2}, random),
                    "variance_scaling: spread is truncated_normal, expected normal or uniform: this source has no "
                    "truncated numbers");
  CHECK(w == std::vector<double>{7, 7});
  std::vector<double> empty;
  ek::variance_scaling(empty, {}, stream);
}
