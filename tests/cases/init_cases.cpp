#include "cases/table.hpp"
#include "evenkeel/init/initializers.hpp"
#include "norms/norm_under_test.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

using namespace cases_test;
namespace ek = evenkeel;

namespace {

using Eigen::Index;

// "sqrt(5)" and plain numbers; "relu" is a slope of 0.
double slope_of(const Case& c, const std::string& pointer) {
  if (!c.is_text(pointer)) return c.number(pointer);
  const std::string text = c.text(pointer);
  if (text == "relu") return 0;
  CHECK(text == "sqrt(5)");
  return std::sqrt(5.0);
}

void expect(const Case& c, const std::string& name, double got, const std::string& pointer) {
  INFO(name);
  CHECK(difference({got}, c.values(pointer), c.limit("float64", name)) == "");
}

// "out,in/groups,kh,kw": what each axis of a stored weight means.
ek::FanAxes axes_of(const std::string& layout, Index groups) {
  ek::FanAxes axes{.groups = groups};
  Index axis = 0;
  for (std::size_t begin = 0; begin <= layout.size(); ++axis) {
    const std::size_t end = std::min(layout.find(',', begin), layout.size());
    const std::string name = layout.substr(begin, end - begin);
    if (name.starts_with("out")) axes.output = {axis};
    if (name.starts_with("in")) axes.input = {axis};
    if (name == "out/groups") axes.grouped = ek::GroupedAxis::input;
    begin = end + 1;
  }
  return axes;
}

void check_fans(const Case& c) {
  CHECK(c.size("/inputs/table") == c.size("/expected/table"));
  for (std::size_t i = 0; i < c.size("/inputs/table"); ++i) {
    const std::string in = "/inputs/table/" + std::to_string(i), out = "/expected/table/" + std::to_string(i);
    INFO(c.text(in + "/layer"));
    CHECK(c.text(in + "/layer") == c.text(out + "/layer"));
    CHECK(c.text(in + "/layout") == c.text(out + "/layout"));
    const Values extents = c.values(in + "/shape");
    CHECK(extents == c.values(out + "/shape"));
    Shape shape;
    for (const double extent : extents) shape.push_back(Index(extent));
    const bool grouped = c.has(in + "/groups");
    const Index groups = grouped ? Index(c.number(in + "/groups")) : 1;
    if (grouped) CHECK(c.number(out + "/groups") == double(groups));
    const ek::FanAxes axes = axes_of(c.text(in + "/layout"), groups);
    const ek::Fans fans = ek::fans_of(shape, axes);
    CHECK(double(fans.in) == c.number(out + "/fan_in"));
    CHECK(double(fans.out) == c.number(out + "/fan_out"));
    if (c.has(out + "/xavier_normal_std"))
      expect(c, "xavier_normal_std", ek::xavier_std(fans), out + "/xavier_normal_std");

    // The same layer stored the other way round.
    Shape reversed(shape.rbegin(), shape.rend());
    ek::FanAxes last = axes;
    for (auto* named : {&last.input, &last.output})
      for (Index& axis : *named) axis = Index(shape.size()) - 1 - axis;
    const ek::Fans same = ek::fans_of(reversed, last);
    CHECK(same.in == fans.in);
    CHECK(same.out == fans.out);
  }
}

void check_degenerate_shapes(const Case& c) {
  CHECK(c.text("/expected/error") == "rank_error list");
  CHECK(c.text("/expected/no_op") == "zero_sized list");
  for (std::size_t i = 0; i < c.size("/inputs/rank_error"); ++i) {
    Shape shape;
    for (const double extent : c.values("/inputs/rank_error/" + std::to_string(i))) shape.push_back(Index(extent));
    std::string text;
    try {
      ek::fans_of(shape, {.input = {0}, .output = {0}});
    } catch (const ek::ShapeError& error) {
      text = error.what();
    }
    CHECK(text.find("a fan needs at least two axes") != std::string::npos);
  }
  for (std::size_t i = 0; i < c.size("/inputs/zero_sized"); ++i) {
    const Values extents = c.values("/inputs/zero_sized/" + std::to_string(i));
    const Index rows = Index(extents.at(0)), cols = Index(extents.at(1));
    norms_test::RowMatrix<float> weight(rows, cols);
    const ek::Fans fans = ek::fans_of({rows, cols}, {.input = {1}, .output = {0}});
    const ek::RandomStream stream(1, "weight");
    CHECK_NOTHROW(ek::xavier_uniform(weight, fans, stream));
    CHECK_NOTHROW(ek::xavier_normal(weight, fans, stream));
    CHECK_NOTHROW(ek::kaiming_uniform(weight, fans, stream));
    CHECK_NOTHROW(ek::kaiming_normal(weight, fans, stream));
  }
}

// Gain, standard deviation and bound of a uniform Kaiming initializer, and that its values fill the bound.
void check_kaiming_uniform(const Case& c) {
  const ek::Fans fans{.in = Index(c.number("/params/fan")), .out = 3};
  for (std::size_t i = 0; i < c.size("/inputs/a"); ++i) {
    const std::string at = "/" + std::to_string(i);
    const double gain = ek::leaky_relu_gain(slope_of(c, "/inputs/a" + at));
    const double bound = c.number("/expected/bound" + at);
    expect(c, "gain", gain, "/expected/gain" + at);
    expect(c, "std", ek::kaiming_std(fans, {.gain = gain}), "/expected/std" + at);
    expect(c, "bound", std::sqrt(3.0) * ek::kaiming_std(fans, {.gain = gain}), "/expected/bound" + at);
    std::vector<double> weight(100000);
    ek::kaiming_uniform(weight.data(), Index(weight.size()), fans, ek::RandomStream(7, "weight"), {.gain = gain});
    const auto [low, high] = std::minmax_element(weight.begin(), weight.end());
    CHECK(*low >= -bound * (1 + 1e-15));
    CHECK(*high <= bound * (1 + 1e-15));
    CHECK(*low < -0.999 * bound);  // of 1e5 values all miss the last thousandth with a chance of e^-50
    CHECK(*high > 0.999 * bound);
  }
  CHECK(ek::leaky_relu_gain() == ek::leaky_relu_gain(0.01));
  CHECK(difference({ek::relu_gain}, {ek::leaky_relu_gain(0)}, {1e-15, 0}) == "");
  // U(-1/sqrt(fan_in), 1/sqrt(fan_in)) under its own name.
  std::vector<double> weight(1000), linear(1000);
  const double gain = ek::leaky_relu_gain(std::sqrt(5.0));
  ek::kaiming_uniform(weight.data(), 1000, fans, ek::RandomStream(7, "weight"), {.gain = gain});
  ek::torch_linear_uniform(linear.data(), 1000, fans, ek::RandomStream(7, "weight"));
  CHECK(difference(weight, linear, {1e-12, 1e-16}) == "");
}

template <class T>
void check_streams(std::uint64_t seed, Index rows, Index cols) {
  const auto size = rows * cols;
  const auto filled = [&](const auto& fill) {
    std::vector<T> data(std::size_t(size), norms_test::nan_of<T>());
    fill(data.data(), Index(0), size);
    return data;
  };
  const auto same = [](const std::vector<T>& a, const std::vector<T>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), [](T x, T y) { return double(x) == double(y); });
  };
  const auto check = [&](const auto& fill) {
    const std::vector<T> whole = filled(fill);
    for (const int threads : {1, 2, 3, 8}) {
      std::vector<T> parts(whole.size());
      std::vector<std::thread> workers;
      const Index share = (size + threads - 1) / threads;
      for (Index first = 0; first < size; first += share)
        workers.emplace_back([&, first] { fill(parts.data() + first, first, std::min(share, size - first)); });
      for (std::thread& worker : workers) worker.join();
      INFO(threads << " threads");
      CHECK(same(parts, whole));
    }
    // Halves that meet in the middle of a block of random numbers.
    std::vector<T> halves(whole.size());
    const Index half = size / 2 + 1;
    fill(halves.data() + half, half, size - half);
    fill(halves.data(), Index(0), half);
    CHECK(same(halves, whole));
    // Draws of other objects in between change nothing.
    std::vector<float> unrelated(1000);
    ek::normal(unrelated.data(), 1000, 0.0, 1.0, ek::RandomStream(seed, "another"));
    CHECK(same(filled(fill), whole));
    CHECK_FALSE(std::any_of(whole.begin(), whole.end(), [](T v) { return std::isnan(double(v)); }));
  };
  const ek::RandomStream stream(seed, "weight");
  check([&](T* data, Index first, Index count) {
    ek::normal(data, count, 0.0, 0.02, stream.from(std::uint64_t(first)));
  });
  check([&](T* data, Index first, Index count) {
    ek::uniform(data, count, -0.1, 0.1, stream.from(std::uint64_t(first)));
  });

  if constexpr (ek::is_half_v<T>) {
    std::vector<T> rounded(std::size_t(size), T(0));
    std::vector<float> floats(rounded.size());
    ek::normal(rounded.data(), size, 0.0, 0.02, stream);
    ek::normal(floats.data(), size, 0.0, 0.02, stream);
    Index different = 0;
    for (std::size_t i = 0; i < floats.size(); ++i) different += double(T(floats[i])) != double(rounded[i]);
    CHECK(different == 0);
  }
}

// One seed, one tensor: a value depends on seed, stream and index, and on nothing else.
void check_random(const Case& c) {
  CHECK(c.text("/expected/property") == "bitwise equal as described");
  const auto seed = static_cast<std::uint64_t>(c.number("/params/seed"));
  const Values shape = c.values("/inputs/shape");
  const Index rows = Index(shape.at(0)), cols = Index(shape.at(1));
  for_each_type(c, [&]<class T>(Type<T>, const std::string&) { check_streams<T>(seed, rows, cols); });
  check_streams<Eigen::bfloat16>(seed, rows, cols);
  check_streams<Eigen::half>(seed, rows, cols);
}

// The standard deviation of GPT-2's projections into the residual stream, and that setting it twice is setting it once.
void check_gpt2(const Case& c) {
  const Values layers = c.values("/inputs/gpt2_L");
  for (std::size_t i = 0; i < layers.size(); ++i)
    expect(c, "gpt2_std", ek::gpt2_residual_std(Index(layers[i])), "/expected/gpt2_std/" + std::to_string(i));
  std::vector<double> once(1000), twice(1000);
  const ek::RandomStream stream(3, "projection");
  ek::gpt2_residual_normal(once.data(), 1000, Index(12), stream);
  for (int i = 0; i < 2; ++i) ek::gpt2_residual_normal(twice.data(), 1000, Index(12), stream);
  CHECK(bit_difference(twice, once) == "");
}

}  // namespace

void cases_test::add_init_cases(Table& table) {
  table["initializer fan computation"] = check_fans;
  table["xavier, kaiming, orthogonal, muP initializers"] = check_degenerate_shapes;
  table["kaiming_uniform"] = check_kaiming_uniform;
  table["random initializers (uniform, normal, truncated normal)"] = check_random;
  table["gpt2_init, fixup_init"] = check_gpt2;
}
