#include "evenkeel/init/random.hpp"
#include "support/catch.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace ek = evenkeel;

namespace {

template <class T>
bool same_bits(const T* a, const T* b, std::size_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(T)) == 0;
}

template <class T>
std::vector<T> normals(const ek::RandomStream& stream, std::size_t count) {
  std::vector<T> values(count);
  stream.fill_normal(values.data(), static_cast<std::ptrdiff_t>(count), 0.25, 1.5);
  return values;
}

template <class T>
std::vector<T> uniforms(const ek::RandomStream& stream, std::size_t count) {
  std::vector<T> values(count);
  stream.fill_uniform(values.data(), static_cast<std::ptrdiff_t>(count), -0.3, 0.7);
  return values;
}

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};

template <class T>
Moments moments(const std::vector<T>& values) {
  const double n = static_cast<double>(values.size());
  Moments m;
  for (const T v : values) m.mean += double(v) / n;
  for (const T v : values) {
    const double c = double(v) - m.mean;
    m.variance += c * c / n;
    m.skewness += c * c * c / n;
    m.kurtosis += c * c * c * c / n;
  }
  m.skewness /= std::pow(m.variance, 1.5);
  m.kurtosis /= m.variance * m.variance;
  return m;
}

}  // namespace

TEST_CASE("stream_id is FNV-1a with 64 bits") {
  CHECK(ek::stream_id("") == 0xcbf29ce484222325u);
  CHECK(ek::stream_id("a") == 0xaf63dc4c8601ec8cu);
  CHECK(ek::stream_id("foobar") == 0x85944171f73967e8u);
  CHECK(normals<float>(ek::RandomStream(5, "foobar"), 9) ==
        normals<float>(ek::RandomStream(5, 0x85944171f73967e8u), 9));
}

// Sizes around a block of four or two values, and offsets that start within one.
TEMPLATE_TEST_CASE("a value depends on seed, stream and index alone", "", float, double, Eigen::half, Eigen::bfloat16) {
  const ek::RandomStream stream(42, "decoder.0.weight");
  constexpr std::size_t n = 777;
  const std::vector<TestType> normal = normals<TestType>(stream, n);
  const std::vector<TestType> uniform = uniforms<TestType>(stream, n);

  SECTION("one by one, last first") {
    for (std::size_t i = n; i-- > 0;) {
      const TestType z = stream.template normal<TestType>(i, 0.25, 1.5);
      const TestType u = stream.template uniform<TestType>(i, -0.3, 0.7);
      REQUIRE(same_bits(&z, &normal[i], 1));
      REQUIRE(same_bits(&u, &uniform[i], 1));
    }
  }
  SECTION("split anywhere") {
    for (const std::size_t first : std::initializer_list<std::size_t>{0, 1, 2, 3, 4, 5, 17, 388, 776, 777}) {
      CAPTURE(first);
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{7}, n - first}) {
        if (first + count > n) continue;
        CHECK(same_bits(normals<TestType>(stream.from(first), count).data(), normal.data() + first, count));
        CHECK(same_bits(uniforms<TestType>(stream.from(first), count).data(), uniform.data() + first, count));
      }
    }
    CHECK(same_bits(normals<TestType>(stream.from(3).from(4), 5).data(), normal.data() + 7, 5));
    const TestType one = stream.from(3).template normal<TestType>(4, 0.25, 1.5);
    CHECK(same_bits(&one, &normal[7], 1));
    const TestType other = stream.from(3).template uniform<TestType>(4, -0.3, 0.7);
    CHECK(same_bits(&other, &uniform[7], 1));
  }
  SECTION("nothing is written past the end") {
    std::vector<TestType> values(8, static_cast<TestType>(7.0f));
    stream.fill_normal(values.data() + 1, 5);
    CHECK(float(values[0]) == 7.0f);
    CHECK(float(values[6]) == 7.0f);
    CHECK(float(values[7]) == 7.0f);
  }
  SECTION("another seed or stream gives other values") {
    CHECK_FALSE(same_bits(normals<TestType>(ek::RandomStream(43, "decoder.0.weight"), 8).data(), normal.data(), 8));
    CHECK_FALSE(same_bits(normals<TestType>(ek::RandomStream(42, "decoder.1.weight"), 8).data(), normal.data(), 8));
    CHECK_FALSE(
        same_bits(normals<TestType>(ek::RandomStream(42 + (std::uint64_t{1} << 32), "decoder.0.weight"), 8).data(),
                  normal.data(), 8));
  }
}

TEST_CASE("16-bit values are the rounded floats") {
  const ek::RandomStream stream(42, 0);
  const std::vector<float> f = normals<float>(stream, 100);
  const std::vector<Eigen::half> h = normals<Eigen::half>(stream, 100);
  const std::vector<Eigen::bfloat16> b = normals<Eigen::bfloat16>(stream, 100);
  for (std::size_t i = 0; i < f.size(); ++i) {
    CHECK(float(h[i]) == float(Eigen::half(f[i])));
    CHECK(float(b[i]) == float(Eigen::bfloat16(f[i])));
  }
}

TEST_CASE("values follow the documented mapping") {
  const ek::RandomStream stream(0x123456789abcdefu, 77);
  constexpr double two_pi = 6.283185307179586;
  for (const std::uint64_t block : {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{1} << 40}) {
    const ek::PhiloxBlock words = ek::random_block(0x123456789abcdefu, 77, block);
    for (unsigned lane = 0; lane < 4; ++lane) {
      CHECK(stream.uniform<float>(4 * block + lane) == static_cast<float>(words.word[lane] >> 8) / 16777216.0f);
      const double r = std::sqrt(-2 * std::log((words.word[lane & 2] + 0.5) / 4294967296.0));
      const double t = two_pi * words.word[lane | 1] / 4294967296.0;
      // One rounding to float of a number below 8.
      CHECK(std::abs(stream.normal<float>(4 * block + lane) - r * (lane % 2 == 0 ? std::cos(t) : std::sin(t))) <=
            2.4e-7);
    }
    std::uint64_t k[2];
    for (unsigned lane = 0; lane < 2; ++lane) {
      k[lane] = (words.word[2 * lane + 1] * std::uint64_t{1} << 32 | words.word[2 * lane]) >> 11;
      CHECK(stream.uniform<double>(2 * block + lane) == static_cast<double>(k[lane]) / 9007199254740992.0);
    }
    const double r = std::sqrt(-2 * std::log(static_cast<double>(k[0] + 1) / 9007199254740992.0));
    const double t = two_pi * static_cast<double>(k[1]) / 9007199254740992.0;
    // A few roundings of a number below 9.
    CHECK(std::abs(stream.normal<double>(2 * block) - r * std::cos(t)) <= 4e-15);
    CHECK(std::abs(stream.normal<double>(2 * block + 1) - r * std::sin(t)) <= 4e-15);
  }
}

// Stored values: the stream is a format, and a change of it changes every model that is initialized by name and seed.
TEST_CASE("the first values of a stream stay what they are") {
  const ek::RandomStream stream(42, "weight");
  CHECK(stream.uniform<float>(0) == 0x1.9609p-2f);
  CHECK(stream.uniform<float>(1) == 0x1.7480cp-3f);
  CHECK(stream.uniform<float>(2) == 0x1.0e4918p-3f);
  CHECK(stream.uniform<float>(3) == 0x1.9342cp-3f);
  CHECK(stream.uniform<double>(0) == 0x1.7480c4632c12p-3);
  CHECK(stream.uniform<double>(1) == 0x1.9342c6910e49p-3);
  CHECK(stream.normal<float>(0) == Approx(0.564506233).epsilon(2.4e-7));
  CHECK(stream.normal<float>(1) == Approx(1.23749614).epsilon(2.4e-7));
  CHECK(stream.normal<float>(2) == Approx(0.659010828).epsilon(2.4e-7));
  CHECK(stream.normal<float>(3) == Approx(1.90157413).epsilon(2.4e-7));
  CHECK(stream.normal<double>(0) == Approx(0.60457124829271702).epsilon(1e-15));
  CHECK(stream.normal<double>(1) == Approx(1.7444888687444238).epsilon(1e-15));
}

// Bounds are five standard deviations of each estimate over n normal values: mean 1/sqrt(n), variance sqrt(2/n),
// skewness sqrt(6/n), kurtosis sqrt(24/n); of n uniforms: mean 1/sqrt(12 n), variance 1/sqrt(180 n). The seed is fixed,
// so a pass stays a pass.
TEMPLATE_TEST_CASE("values have the moments of their distribution", "", float, double) {
  constexpr std::size_t n = 1 << 19;
  const double root = std::sqrt(static_cast<double>(n));
  std::vector<TestType> values(n);
  const ek::RandomStream stream(1, "moments");

  SECTION("normal") {
    stream.fill_normal(values.data(), n);
    const Moments m = moments(values);
    CHECK(std::abs(m.mean) < 5 / root);
    CHECK(std::abs(m.variance - 1) < 5 * std::sqrt(2.0) / root);
    CHECK(std::abs(m.skewness) < 5 * std::sqrt(6.0) / root);
    CHECK(std::abs(m.kurtosis - 3) < 5 * std::sqrt(24.0) / root);
    // The largest of half a million normal values lies between 4 and 6.5 but for one seed in a million.
    CHECK(std::abs(*std::max_element(values.begin(), values.end())) > 4);
    CHECK(std::abs(*std::max_element(values.begin(), values.end())) < 6.5);

    // Neighbours come from one pair or one block: their products average to 0 within 5 / sqrt(n), at every small
    // distance.
    for (std::size_t lag = 1; lag <= 5; ++lag) {
      CAPTURE(lag);
      double product = 0, of_squares = 0;
      for (std::size_t i = 0; i + lag < n; ++i) {
        product += double(values[i]) * double(values[i + lag]);
        of_squares +=
            (double(values[i]) * double(values[i]) - 1) * (double(values[i + lag]) * double(values[i + lag]) - 1);
      }
      CHECK(std::abs(product) < 5 * root);
      CHECK(std::abs(of_squares) < 5 * 2 * root);
    }
  }
  SECTION("uniform") {
    stream.fill_uniform(values.data(), n);
    const Moments m = moments(values);
    CHECK(std::abs(m.mean - 0.5) < 5 / (std::sqrt(12.0) * root));
    CHECK(std::abs(m.variance - 1.0 / 12) < 5 / (std::sqrt(180.0) * root));
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    // An edge of width 30/n is empty with probability e^-30.
    CHECK(*low >= 0);
    CHECK(*low < 30.0 / n);
    CHECK(*high < 1);
    CHECK(*high > 1 - 30.0 / n);
  }
}
