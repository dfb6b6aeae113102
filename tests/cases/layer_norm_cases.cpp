#include "cases/channel_run.hpp"
#include "cases/row_run.hpp"
#include "cases/table.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <cmath>
#include <numeric>

using namespace cases_test;
using norms_test::ColMatrix, norms_test::RowMatrix, norms_test::matrix_of, norms_test::values_of, norms_test::vector_of;

namespace {

using Norm = LayerNormUnderTest;
using Eigen::Index;

bool constant_rows(const RowCase& row) {
  for (std::size_t i = 0; i < row.x.size(); ++i)
    if (row.x[i] != row.x[i - i % std::size_t(row.length)]) return false;
  return true;
}

// A constant row is xhat = 0 without any rounding, whatever the weight.
void check_constant_rows(const RowCase& row, const RowResult& result) {
  for (std::size_t i = 0; i < row.x.size(); ++i)
    CHECK(result.y[i] == (row.bias.empty() ? 0 : row.bias[i % row.bias.size()]));
  for (const double dweight : result.dweight) CHECK(dweight == 0);
  for (std::size_t i = 0; i < result.dbias.size(); ++i) {
    double sum = 0;
    for (std::size_t at = i; at < row.dy.size(); at += std::size_t(row.length)) sum += row.dy[at];
    CHECK(result.dbias[i] == sum);
  }
}

template <class T>
void check_sampled(const Case& c, const std::string& type, const RowResult& result) {
  if (c.has("/expected/y_at")) {
    for (const std::string& at : c.keys("/expected/y_at"))
      expect(c, type, "y", {result.y.at(std::stoul(at))}, c.values("/expected/y_at/" + at));
  }
  if (c.has("/expected/mean")) expect(c, type, "mean", result.mean, c.values("/expected/mean"));
  if (c.has("/expected/var")) {
    const double rstd = result.rstd.at(0), eps = as<ek::accumulator_t<T>>(c.number("/params/eps"));
    expect(c, type, "var", {1 / (rstd * rstd) - eps}, c.values("/expected/var"));
  }
  double sum = 0, squares = 0;
  for (const double y : result.y) {
    sum += y;
    squares += y * y;
  }
  if (c.has("/expected/sum_y")) expect(c, type, "sum_y", {sum}, c.values("/expected/sum_y"));
  if (c.has("/expected/sum_y2")) expect(c, type, "sum_y2", {squares}, c.values("/expected/sum_y2"));
  if (c.has("/expected/y_every_row")) {
    const Values one = c.values("/expected/y_every_row");
    Values all;
    while (all.size() < result.y.size()) all.insert(all.end(), one.begin(), one.end());
    expect(c, type, "y", result.y, all);
  }
}

// Statistics over the last two axes of three, with a matrix as weight and as bias: by name of the axes, on tensors.
template <class T, int Layout>
void check_two_axes(const Case& c, const std::string& type) {
  using Tensor3 = Eigen::Tensor<T, 3, Layout>;
  using Tensor2 = Eigen::Tensor<T, 2, Layout>;
  const auto shape = c.tensor("/inputs/x").shape;
  const auto cube = [&](const Values& values) {
    Tensor3 t(shape[0], shape[1], shape[2]);
    for (Index i = 0, at = 0; i < shape[0]; ++i)
      for (Index j = 0; j < shape[1]; ++j)
        for (Index k = 0; k < shape[2]; ++k) t(i, j, k) = static_cast<T>(values.at(std::size_t(at++)));
    return t;  // (outer, length 0, length 1)
  };
  const auto plane = [&](const Values& values) {
    Tensor2 t(shape[1], shape[2]);
    for (Index j = 0, at = 0; j < shape[1]; ++j)
      for (Index k = 0; k < shape[2]; ++k) t(j, k) = static_cast<T>(values.at(std::size_t(at++)));
    return t;  // (length 0, length 1)
  };
  const auto of_cube = [&](const Tensor3& t) {
    Values v;
    for (Index i = 0; i < shape[0]; ++i)
      for (Index j = 0; j < shape[1]; ++j)
        for (Index k = 0; k < shape[2]; ++k) v.push_back(static_cast<double>(t(i, j, k)));
    return v;
  };
  const auto of_plane = [&](const Tensor2& t) {
    Values v;
    for (Index j = 0; j < shape[1]; ++j)
      for (Index k = 0; k < shape[2]; ++k) v.push_back(static_cast<double>(t(j, k)));
    return v;
  };
  const Values nothing(c.values("/inputs/x").size(), NAN);
  const Tensor3 x = cube(c.values("/inputs/x")), dy = cube(c.values("/inputs/dy"));
  Tensor3 y = cube(nothing), dx = cube(nothing);
  const Tensor2 weight = plane(c.values("/params/gamma")), bias = plane(c.values("/params/beta"));
  Tensor2 dweight = plane(nothing), dbias = plane(nothing);
  ek::LayerNormSaved<ek::accumulator_t<T>> saved;
  ek::layer_norm(ek::serial, x, weight, bias, y, saved, {.eps = c.number("/params/eps"), .axis = {1, 2}});
  ek::layer_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias, ek::GradientMode::overwrite);
  RowResult result;
  result.y = of_cube(y);
  result.dx = of_cube(dx);
  result.dweight = of_plane(dweight);
  result.dbias = of_plane(dbias);
  expect_listed(c, type, result);
}

// A NaN in a row is that row's alone: the others are what they are without it.
template <class T>
void check_without_nan_rows(const RowCase& row, const RowResult& result) {
  RowCase healthy = row;
  healthy.x.clear();
  healthy.dy.clear();
  healthy.rows = 0;
  Values y, dx;
  for (Index r = 0; r < row.rows; ++r) {
    const Values x = part(row.x, r * row.length, row.length);
    if (std::isnan(std::accumulate(x.begin(), x.end(), 0.0))) continue;
    const auto add = [&](Values& to, const Values& from) {
      const Values taken = part(from, r * row.length, row.length);
      to.insert(to.end(), taken.begin(), taken.end());
    };
    add(healthy.x, row.x);
    add(healthy.dy, row.dy);
    add(y, result.y);
    add(dx, result.dx);
    ++healthy.rows;
  }
  if (healthy.rows == row.rows) return;
  const RowResult alone = run<T, Norm>(ek::serial, healthy);
  CHECK(bit_difference(y, alone.y) == "");
  CHECK(bit_difference(dx, alone.dx) == "");
}

void check_layer_norm(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    const RowCase row = row_case(c);
    for (const RowResult& result : run_everywhere<T, Norm>(row)) {
      expect_listed(c, type, result);
      check_sampled<T>(c, type, result);
      if (constant_rows(row)) check_constant_rows(row, result);
      check_without_nan_rows<T>(row, result);
    }
    if (c.has("/params/normalized_shape") && c.size("/params/normalized_shape") == 2) {
      check_two_axes<T, Eigen::RowMajor>(c, type);
      check_two_axes<T, Eigen::ColMajor>(c, type);
    }
  });
}

// No rows: shapes stay, and the gradients of weight and bias are 0 and not what lay in their memory.
void check_zero_rows(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    RowCase row = row_case(c);
    CHECK(difference(c.values("/expected/y_shape"), {double(row.rows), double(row.length)}, {}) == "");
    CHECK(difference(c.values("/expected/dx_shape"), {double(row.rows), double(row.length)}, {}) == "");
    row.weight.assign(std::size_t(row.length), 1);
    row.bias.assign(std::size_t(row.length), 0);
    for (const RowResult& result : run_everywhere<T, Norm>(row)) {
      CHECK(result.y.empty());
      CHECK(result.dx.empty());
      expect_listed(c, type, result);
    }
  });
}

void check_forward_backward(const Case& c) {
  if (c.has("/expected/y_shape"))
    check_zero_rows(c);
  else
    check_layer_norm(c);
}

// The library keeps x and saves no output, so the gradients are the true ones; a forward that wrote y over x has
// nothing left to start from, and its backward refuses.
void check_saving_the_output(const Case& c) {
  CHECK(c.boolean("/params/memory_efficient"));
  check_layer_norm(c);
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string&) {
    const RowCase row = row_case(c);
    Memory<T> x(row, Arrangement::along, row.x), dy(row, Arrangement::along, row.dy), dx(row, Arrangement::along);
    const auto weight = vector_of<T>(row.weight), bias = vector_of<T>(row.bias);
    ek::LayerNormSaved<ek::accumulator_t<T>> saved;
    ek::layer_norm(ek::serial, x.map(), weight, bias, x.map(), saved, {.eps = row.eps, .axis = 1});
    CHECK_THROWS_AS(ek::layer_norm_backward(ek::serial, dy.map(), x.map(), weight, saved, dx.map(), ek::none, ek::none),
                    ek::ShapeError);
  });
}

// Weight and bias are independent options: four results, and each half is the whole with a neutral other half.
void check_optional_parameters(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    const RowCase both = row_case(c);
    const Values ones(both.weight.size(), 1), zeros(both.bias.size(), 0);
    const auto with = [&](const Values& weight, const Values& bias) {
      RowCase row = both;
      row.weight = weight;
      row.bias = bias;
      return row;
    };
    const std::vector<std::pair<std::string, RowCase>> combinations{
        {"none", with({}, {})}, {"gamma", with(both.weight, {})}, {"beta", with({}, both.bias)}, {"both", both}};
    for (const auto& [name, row] : combinations) {
      INFO(name);
      const std::string listed = "/expected/" + name;
      for (const RowResult& result : run_everywhere<T, Norm>(row)) {
        expect(c, type, "y", result.y, c.values(listed + "/y"));
        expect(c, type, "dx", result.dx, c.values(listed + "/dx"));
        CHECK(result.dweight.empty() == !c.has(listed + "/dgamma"));
        CHECK(result.dbias.empty() == !c.has(listed + "/dbeta"));
        if (!result.dweight.empty()) expect(c, type, "dgamma", result.dweight, c.values(listed + "/dgamma"));
        if (!result.dbias.empty()) expect(c, type, "dbeta", result.dbias, c.values(listed + "/dbeta"));
      }
    }
    const auto same = [&](const RowCase& half, const RowCase& whole) {
      const RowResult a = run<T, Norm>(ek::serial, half), b = run<T, Norm>(ek::serial, whole);
      CHECK(bit_difference(a.y, b.y) == "");
      CHECK(bit_difference(a.dx, b.dx) == "");
    };
    same(with(both.weight, {}), with(both.weight, zeros));
    same(with({}, both.bias), with(ones, both.bias));

    // GroupNorm of one group, one position and as many channels: the same formula over the same numbers.
    const auto group = [&](const RowCase& row) {
      ChannelCase channel;
      channel.norm = ChannelNorm::group;
      channel.samples = row.rows;
      channel.channels = row.length;
      channel.groups = 1;
      channel.x = row.x;
      channel.dy = row.dy;
      channel.weight = row.weight;
      channel.bias = row.bias;
      channel.eps = row.eps;
      return channel;
    };
    for (const auto& [name, row] : combinations) {
      INFO("group_norm, " << name);
      const std::string listed = "/expected/" + name;
      for (const ChannelResult& result : run_channels_everywhere<T>(group(row))) {
        expect(c, type, "y", result.y, c.values(listed + "/y"));
        expect(c, type, "dx", result.dx, c.values(listed + "/dx"));
        CHECK(result.dweight.empty() == !c.has(listed + "/dgamma"));
        CHECK(result.dbias.empty() == !c.has(listed + "/dbeta"));
        if (!result.dweight.empty()) expect(c, type, "dgamma", result.dweight, c.values(listed + "/dgamma"));
        if (!result.dbias.empty()) expect(c, type, "dbeta", result.dbias, c.values(listed + "/dbeta"));
      }
    }
    const auto same_group = [&](const RowCase& half, const RowCase& whole) {
      for (const auto arrangement : channel_arrangements) {
        const ChannelResult a = run_channels<T, T>(ek::serial, group(half), arrangement),
                            b = run_channels<T, T>(ek::serial, group(whole), arrangement);
        CHECK(bit_difference(a.y, b.y) == "");
        CHECK(bit_difference(a.dx, b.dx) == "");
      }
    };
    same_group(with(both.weight, {}), with(both.weight, zeros));
    same_group(with({}, both.bias), with(ones, both.bias));

    RowCase plain = with({}, {}), weighted = with(ones, {});
    const RowResult a = run<T, RmsNormUnderTest>(ek::serial, plain), b = run<T, RmsNormUnderTest>(ek::serial, weighted);
    CHECK(bit_difference(a.y, b.y) == "");
    // No bits of dx: compilers contract dy * 1 - xhat * mean to another fused product than dy - xhat * mean.
    expect(c, type, "dx", a.dx, b.dx);
  });
}

}  // namespace

void cases_test::add_layer_norm_cases(Table& table) {
  table["layer_norm.forward"] = check_layer_norm;
  table["layer_norm.backward"] = check_layer_norm;
  table["layer_norm.forward / backward"] = check_forward_backward;
  table["layer_norm.backward (saving the output)"] = check_saving_the_output;
  table["layer_norm.forward / backward (also group_norm, rms_norm without gamma)"] = check_optional_parameters;
}
