#include "evenkeel/init/torch_random.hpp"
#include "init/torch_values.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <vector>

namespace ek = evenkeel;

namespace {

template <class T>
void check_bits(std::span<const T> got, std::span<const T> expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i] == expected[i]);
  }
}

// 2.4e-7 is one float below 4, and half of one above; torch computes the block path in float.
void check_normals(std::span<const float> got, std::span<const float> expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - expected[i]) <= 2.4e-7f * std::max(1.0f, std::abs(expected[i])));
  }
}

// Math libraries differ by an ulp in log, sin and cos.
void check_normals(std::span<const double> got, std::span<const double> expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - expected[i]) <= 1e-15 * std::max(1.0, std::abs(expected[i])));
  }
}

template <class T>
std::vector<T> uniforms(ek::TorchRandom& random, std::size_t count, double lo = 0, double hi = 1) {
  std::vector<T> values(count);
  random.fill_uniform(values.data(), static_cast<std::ptrdiff_t>(count), lo, hi);
  return values;
}

template <class T>
std::vector<T> normals(ek::TorchRandom& random, std::size_t count, double mean = 0, double std = 1) {
  std::vector<T> values(count);
  random.fill_normal(values.data(), static_cast<std::ptrdiff_t>(count), mean, std);
  return values;
}

template <class T, std::size_t N>
std::span<const T> table(const T (&values)[N]) {
  return values;
}

}  // namespace

TEST_CASE("TorchRandom draws torch's uniforms bit for bit") {
  ek::TorchRandom random(0);
  check_bits<float>(uniforms<float>(random, 6), table(torch_values::rand));
  random.seed(0);
  check_bits<float>(uniforms<float>(random, 6, -0.1234567, 0.3), table(torch_values::uniform));
  random.seed(0);
  check_bits<double>(uniforms<double>(random, 6), table(torch_values::rand_double));
  random.seed(0);
  check_bits<double>(uniforms<double>(random, 6, -0.1234567, 0.3), table(torch_values::uniform_double));
}

TEST_CASE("TorchRandom looks at the low 32 bits of the seed") {
  ek::TorchRandom random((std::uint64_t{1} << 32) + 7);
  check_bits<float>(uniforms<float>(random, 3), table(torch_values::rand_seed_7));
  random.seed(7);
  check_bits<float>(uniforms<float>(random, 3), table(torch_values::rand_seed_7));
}

TEST_CASE("TorchRandom draws torch's normals") {
  ek::TorchRandom random(0);
  SECTION("fewer than 16 values") {
    check_normals(normals<float>(random, 4), table(torch_values::randn_4));
    CHECK(torch_values::randn_4[0] == Approx(1.5409961));
  }
  SECTION("one block") { check_normals(normals<float>(random, 16), table(torch_values::randn_16)); }
  SECTION("a partial block is drawn anew over the last 16 values") {
    check_normals(normals<float>(random, 37), table(torch_values::randn_37));
  }
  SECTION("double") { check_normals(normals<double>(random, 20), table(torch_values::randn_double_20)); }
  SECTION("mean and standard deviation") {
    random.seed(1);
    // Scaled by 2, so are the differences.
    const std::vector<float> values = normals<float>(random, 16, 0.5, 2);
    for (std::size_t i = 0; i < 16; ++i) CHECK(std::abs(values[i] - torch_values::normal_16[i]) <= 4.8e-7 * 4);
    random.seed(1);
    check_normals(normals<double>(random, 3, 0.5, 2), table(torch_values::normal_double_3));
  }
}

TEST_CASE("TorchRandom keeps the second normal value across other calls, and seeding forgets it") {
  ek::TorchRandom random(3);
  std::vector<float> got = normals<float>(random, 3);
  const auto append = [&](const std::vector<float>& more) { got.insert(got.end(), more.begin(), more.end()); };
  append(uniforms<float>(random, 2));
  append(normals<float>(random, 17));
  append(normals<float>(random, 2));
  check_normals(got, table(torch_values::sequence));

  ek::TorchRandom fresh(0);
  normals<float>(fresh, 1);
  fresh.seed(0);
  check_normals(normals<float>(fresh, 4), table(torch_values::randn_4));
}

TEST_CASE("TorchRandom draws one by one for a tensor that is not contiguous") {
  ek::TorchRandom random(4);
  std::vector<float> values(17);
  for (float& v : values) v = static_cast<float>(random.next_normal());
  check_normals(values, table(torch_values::strided));
}

TEST_CASE("an empty tensor draws nothing") {
  ek::TorchRandom random(0);
  normals<float>(random, 0);
  uniforms<double>(random, 0);
  check_bits<float>(uniforms<float>(random, 6), table(torch_values::rand));
}
