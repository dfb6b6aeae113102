#include "cases/table.hpp"
#include "evenkeel/init/initializers.hpp"
#include "evenkeel/init/orthogonal.hpp"
#include "evenkeel/init/residual_net_plan.hpp"
#include "evenkeel/init/transformer_plan.hpp"
#include "evenkeel/init/variance_scaling.hpp"
#include "norms/norm_under_test.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

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
  const ek::Plan mup = ek::transformer_plan(
      ek::TransformerRecipe::mup,
      {.decoder_layers = 1, .width = 8, .heads = 1, .base = ek::BaseInit::xavier, .base_width = 4, .base_heads = 1});
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
    CHECK_NOTHROW(ek::orthogonal(weight, stream));
    CHECK_NOTHROW(mup.initialize(ek::Role::query, weight, fans, stream));
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
  if constexpr (std::is_same_v<T, float>)
    check([&](T* data, Index first, Index count) {
      ek::sigma_truncated_normal(data, count, stream.from(std::uint64_t(first)), {.std = 0.02});
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

// What is left of a normal distribution cut at two standard deviations, and that variance scaling makes up for it; of a
// million values within the 0.004 of the case.
void check_truncated_normal(const Case& c) {
  const Values bounds = c.values("/params/bounds");
  const double std = ek::truncated_normal_std(bounds.at(0), bounds.at(1));
  expect(c, "std_after_truncation", std, "/expected/std_after_truncation");
  expect(c, "variance_after_truncation", std * std, "/expected/variance_after_truncation");
  expect(c, "parent_std_for_unit_std", 1 / std, "/expected/parent_std_for_unit_std");
  const double parent = c.number("/expected/parent_std_for_unit_std");
  std::vector<double> values(static_cast<std::size_t>(c.number("/inputs/n")));
  ek::variance_scaling(values, {.in = 1, .out = 1}, ek::RandomStream(7, "weight"));
  double squares = 0, largest = 0;
  for (const double v : values) {
    squares += v * v;
    largest = std::max(largest, std::abs(v));
  }
  CHECK(std::abs(std::sqrt(squares / double(values.size())) - 1) < 0.004);
  CHECK(largest <= 2 * parent);
  CHECK(largest > 2 * parent * 0.999);
  ek::sigma_truncated_normal(values, ek::RandomStream(7, "weight"), {.lower = bounds[0], .upper = bounds[1]});
  squares = 0;
  for (const double v : values) squares += v * v;
  CHECK(std::abs(std::sqrt(squares / double(values.size())) / std - 1) < 0.004);
}

// Rows or columns, whichever are fewer, have gain^2 on the diagonal of their products and 0 beside it.
void check_orthogonal(const Case& c) {
  CHECK(c.text("/params/gain") == "sqrt(2)");
  const double diagonal = c.number("/expected/gram_diagonal"), rest = c.number("/expected/gram_off_diagonal");
  for (std::size_t s = 0; s < c.size("/inputs/shapes"); ++s) {
    const Values shape = c.values("/inputs/shapes/" + std::to_string(s));
    const Index rows = Index(shape.at(0));
    Index cols = 1;
    for (std::size_t a = 1; a < shape.size(); ++a) cols *= Index(shape[a]);
    for_each_type<double, float, Eigen::bfloat16>(c, [&]<class T>(Type<T>, const std::string& type) {
      for (const std::uint64_t seed : {1u, 2u, 3u}) {
        const ek::RandomStream stream(seed, "weight");
        norms_test::RowMatrix<T> weight(rows, cols);
        ek::orthogonal(weight, stream, {.gain = ek::relu_gain});
        if (shape.size() == 4) {
          Eigen::Tensor<T, 4, Eigen::RowMajor> kernel(rows, Index(shape[1]), Index(shape[2]), Index(shape[3]));
          ek::orthogonal(kernel, stream, {.gain = ek::relu_gain});
          Index different = 0;
          for (Index i = 0; i < weight.size(); ++i) different += double(kernel.data()[i]) != double(weight.data()[i]);
          CHECK(different == 0);
        }
        const Eigen::MatrixXd w = weight.template cast<double>();
        const Index n = std::min(rows, cols);
        for (Index i = 0; i < n; ++i)
          for (Index j = 0; j < n; ++j) {
            const double product = rows <= cols ? w.row(i).dot(w.row(j)) : w.col(i).dot(w.col(j));
            CHECK(difference({product}, {i == j ? diagonal : rest}, c.limit(type, "gram")) == "");
          }
      }
    });
  }
}

// The standard deviation of GPT-2's projections into the residual stream, and that setting it twice is setting it once;
// Fixup's factors.
void check_depth_scaling(const Case& c) {
  const Values layers = c.values("/inputs/gpt2_L");
  std::vector<double> once(1000), twice(1000);
  const ek::RandomStream stream(3, "projection");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string expected = "/expected/gpt2_std/" + std::to_string(i);
    const auto count = Index(layers[i]);
    expect(c, "gpt2_std", ek::gpt2_residual_std(count), expected);
    const ek::Plan plan =
        ek::transformer_plan(ek::TransformerRecipe::gpt2, {.decoder_layers = count, .width = 64, .heads = 4});
    Index scaled = 0;
    for (const auto& entry : plan.parts().entries) {
      const double std = plan.std(entry.of);
      if (std != 0 && std != 0.02) {
        expect(c, "gpt2_std", std, expected);
        ++scaled;
      }
    }
    CHECK(double(scaled) == c.number("/expected/gpt2_scaled_tensors_per_block"));
    CHECK(plan.role(ek::Role::bias).start.number == 0);
    CHECK(plan.role(ek::Role::norm_weight).start.number == 1);
    plan.initialize(ek::Role::ffn_down, once, {}, stream);
    for (int n = 0; n < 2; ++n) plan.initialize(ek::Role::ffn_down, twice, {}, stream);
    CHECK(bit_difference(twice, once) == "");
    ek::gpt2_residual_normal(twice.data(), 1000, count, stream);
    CHECK(bit_difference(twice, once) == "");
  }
  const ek::Fans fans{.in = 50, .out = 50};
  for (std::size_t i = 0; i < c.size("/inputs/fixup_L_m"); ++i) {
    const Values shape = c.values("/inputs/fixup_L_m/" + std::to_string(i));
    const std::string expected = "/expected/fixup_factor/" + std::to_string(i);
    const Index m = Index(shape.at(1));
    expect(c, "fixup_factor", ek::fixup_factor(Index(shape.at(0)), m), expected);
    const ek::Plan plan =
        ek::residual_net_plan(ek::ResidualNetRecipe::fixup, {.stages = {Index(shape[0])}, .branch_layers = m});
    for (Index layer = 1; layer < m; ++layer)
      expect(c, "fixup_factor", plan.std(ek::branch_layer(layer), fans) / std::sqrt(2.0 / 50), expected);
    CHECK(plan.std(ek::branch_layer(m), fans) == 0);
    CHECK(plan.std(ek::Role::classifier, fans) == 0);
  }
}

// Standard deviations, learning rates and the readout's multiplier at a ratio of widths, and nothing at a ratio of 1.
void check_mup(const Case& c) {
  const auto base_width = Index(c.number("/params/width_base")), width = Index(c.number("/params/width"));
  const double std = c.number("/inputs/std_base"), rate = c.number("/inputs/lr_base");
  const auto plan_of = [&](Index full, ek::BaseInit base) {
    return ek::transformer_plan(ek::TransformerRecipe::mup, {.decoder_layers = 2,
                                                             .width = full,
                                                             .heads = 4,
                                                             .base = base,
                                                             .std = std,
                                                             .base_width = base_width,
                                                             .base_heads = 4});
  };
  const ek::Plan plan = plan_of(width, ek::BaseInit::normal), at_base = plan_of(base_width, ek::BaseInit::normal);
  const auto check = [&](const std::string& name, ek::Role role) {
    expect(c, "adam_lr", rate * plan.learning_rate_factor(role), "/expected/adam_lr/" + name);
    if (role != ek::Role::bias) expect(c, "std", plan.std(role), "/expected/std/" + name);
    CHECK(at_base.learning_rate_factor(role) == 1);
    CHECK(at_base.forward_multiplier(role) == 1);
    if (role != ek::Role::bias) CHECK(at_base.std(role) == std);
  };
  check("input", ek::Role::embedding);
  check("hidden", ek::Role::ffn_up);
  check("readout", ek::Role::head);
  check("bias", ek::Role::bias);
  expect(c, "readout_output_multiplier", plan.forward_multiplier(ek::Role::head),
         "/expected/readout_output_multiplier");
  // Xavier's bound at the base times this is the bound here.
  const ek::Plan xavier = plan_of(width, ek::BaseInit::xavier);
  const double ratio =
      xavier.std(ek::Role::query, {.in = width, .out = width}) / ek::xavier_std({.in = base_width, .out = base_width});
  expect(c, "xavier_uniform_bound_factor_hidden", ratio, "/expected/xavier_uniform_bound_factor_hidden");
}

void check_deepnorm(const Case& c) {
  const auto n = Index(c.number("/inputs/N"));
  const Values m = c.values("/inputs/M");
  const auto check = [&](const ek::Plan& plan, ek::Stack stack, const std::string& alpha, const std::string& beta) {
    expect(c, "alpha", plan.block(stack, 0).skip, alpha);
    const auto factor = [&](ek::Role role) { return plan.role(ek::RoleOf(role, stack)).start.factor; };
    for (const ek::Role role : {ek::Role::value, ek::Role::attention_output, ek::Role::ffn_up, ek::Role::ffn_down})
      expect(c, "beta", factor(role), beta);
    CHECK(factor(ek::Role::query) == 1);
    CHECK(factor(ek::Role::key) == 1);
  };
  const auto plan_of = [](Index encoder, Index decoder) {
    return ek::transformer_plan(ek::TransformerRecipe::deepnorm,
                                {.encoder_layers = encoder, .decoder_layers = decoder, .width = 64, .heads = 4});
  };
  using enum ek::Stack;
  const std::string both = "/expected/encoder_decoder_6_6";
  check(plan_of(n, 0), encoder, "/expected/encoder_only_6/alpha", "/expected/encoder_only_6/beta");
  check(plan_of(0, Index(m.at(0))), decoder, "/expected/decoder_only_12/alpha", "/expected/decoder_only_12/beta");
  check(plan_of(n, Index(m.at(1))), encoder, both + "/enc_alpha", both + "/enc_beta");
  check(plan_of(n, Index(m.at(1))), decoder, both + "/dec_alpha", both + "/dec_beta");
}

}  // namespace

void cases_test::add_init_cases(Table& table) {
  table["initializer fan computation"] = check_fans;
  table["xavier, kaiming, orthogonal, muP initializers"] = check_degenerate_shapes;
  table["kaiming_uniform"] = check_kaiming_uniform;
  table["random initializers (uniform, normal, truncated normal)"] = check_random;
  table["truncated_normal, variance_scaling"] = check_truncated_normal;
  table["orthogonal initializer"] = check_orthogonal;
  table["gpt2_init, fixup_init"] = check_depth_scaling;
  table["mup_init and multipliers"] = check_mup;
  table["deepnorm constants"] = check_deepnorm;
}
