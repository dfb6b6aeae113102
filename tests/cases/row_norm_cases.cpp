// Cases that speak of both row norms, or of all norms.
#include "cases/channel_run.hpp"
#include "cases/row_run.hpp"
#include "cases/table.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include <cmath>
#include <utility>

using namespace cases_test;
using norms_test::RowMatrix, norms_test::vector_of;

namespace {

using Eigen::Index;

void check_both_forward(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    const RowCase row = row_case(c);
    for (const RowResult& result : run_everywhere<T, LayerNormUnderTest>(row)) expect_listed(c, type, result);
    for (const RowResult& result : run_everywhere<T, RmsNormUnderTest>(row)) expect_listed(c, type, result);
  });
}

// An infinite element: the row may not come out finite, and the row beside it is what it is alone.
void check_infinity(const Case& c) {
  CHECK(c.text("/expected/row1") == "bitwise equal to the same row alone");
  for_each_type(c, [&]<class T>(Type<T>, const std::string&) {
    const RowCase row = row_case(c);
    const auto check = [&](const Values& y, const std::string& listed) {
      for (std::size_t i = 0; i < std::size_t(row.length); ++i) {
        INFO("element " << i << " is " << y[i]);
        const std::string expected = c.text("/expected/" + listed + "/" + std::to_string(i));
        CHECK((expected == "nan" || expected == "0 or nan"));
        CHECK((std::isnan(y[i]) || (y[i] == 0 && expected == "0 or nan")));
      }
      for (std::size_t i = std::size_t(row.length); i < y.size(); ++i) CHECK(std::isfinite(y[i]));
    };
    // run_everywhere compares the witness with itself alone.
    for (const RowResult& result : run_everywhere<T, RmsNormUnderTest>(row)) check(result.y, "rms_norm_row0");
    for (const RowResult& result : run_everywhere<T, LayerNormUnderTest>(row)) check(result.y, "layer_norm_row0");
  });
}

// A view whose last axis is not the contiguous one, with the strides of the case.
void check_strided_view(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    const RowCase row = row_case(c, "/inputs/x_view");
    const Values strides = c.values("/params/strides");
    std::vector<T> storage;
    for (const double value : c.values("/inputs/storage")) storage.push_back(static_cast<T>(value));
    using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
    const Eigen::Map<const RowMatrix<T>, 0, Strides> view(storage.data(), row.rows, row.length,
                                                          Strides(Index(strides.at(0)), Index(strides.at(1))));
    for (Index r = 0; r < row.rows; ++r)
      for (Index i = 0; i < row.length; ++i)
        CHECK(static_cast<double>(view(r, i)) == row.x[std::size_t(r * row.length + i)]);
    const auto weight = vector_of<T>(row.weight);
    RowMatrix<T> y(row.rows, row.length);
    ek::rms_norm(ek::serial, view, weight, y, ek::none, {.eps = row.eps});
    expect(c, type, "y", norms_test::values_of(y), c.values("/expected/y"));
    for (const RowResult& result : run_everywhere<T, RmsNormUnderTest>(row)) expect_listed(c, type, result);

    ek::layer_norm(ek::serial, view, weight, ek::none, y, ek::none, {.eps = row.eps});
    const Values contiguous = run<T, LayerNormUnderTest>(ek::serial, row).y;
    expect(c, type, "y", norms_test::values_of(y), contiguous);
  });
}

void check_both_lists(const Case& c) {
  if (c.has("/inputs/storage"))
    check_strided_view(c);
  else
    check_infinity(c);
}

// Every bad shape is a ShapeError, and y keeps what was in it.
void check_construction(const Case& c) {
  CHECK(c.text("/expected/error") == "all");
  const auto refuses = [](const auto& make) { CHECK_THROWS_AS(make(), ek::ShapeError); };
  for (std::size_t i = 0; i < c.size("/inputs/normalized_shapes"); ++i) {
    const Values shape = c.values("/inputs/normalized_shapes/" + std::to_string(i));
    double features = 1;
    for (const double extent : shape) features *= extent;
    INFO("normalized_shape of " << shape.size() << " axes, " << features << " features");
    if (!shape.empty()) {
      // A layer takes the number of features.
      refuses([&] { ek::LayerNorm<float> norm{Index(features)}; });
      refuses([&] { ek::RmsNorm<float> norm{Index(features)}; });
    }
    if (shape.empty()) {
      Eigen::Tensor<float, 0, Eigen::RowMajor> x, y;
      y.setConstant(77);
      refuses([&] { ek::layer_norm(ek::serial, x, ek::none, ek::none, y, ek::none); });
      refuses([&] { ek::rms_norm(ek::serial, x, ek::none, y, ek::none); });
      CHECK(y() == 77);
    } else if (features == 0) {
      RowMatrix<float> x(5, 0), y(5, 0);
      refuses([&] { ek::layer_norm(ek::serial, x, ek::none, ek::none, y, ek::none); });
      refuses([&] { ek::rms_norm(ek::serial, x, ek::none, y, ek::none); });
      Eigen::Tensor<float, 3, Eigen::RowMajor> cube(5, 3, 0), cube_y(5, 3, 0);
      refuses([&] { ek::layer_norm(ek::serial, cube, ek::none, ek::none, cube_y, ek::none, {.axis = {1, 2}}); });
      refuses([&] { ek::rms_norm(ek::serial, cube, ek::none, cube_y, ek::none, {.axis = {1, 2}}); });
    }
  }
  const Values shape = c.values("/inputs/mismatch/x_shape"), normalized = c.values("/inputs/mismatch/normalized_shape");
  const RowMatrix<float> x = RowMatrix<float>::Ones(Index(shape.at(0)), Index(shape.at(1)));
  RowMatrix<float> y = RowMatrix<float>::Constant(x.rows(), x.cols(), 77);
  ek::LayerNorm<float> layer{Index(normalized.at(0))}, bare_layer{Index(normalized.at(0)), {}, ek::Affine::off};
  ek::RmsNorm<float> rms{Index(normalized.at(0))}, bare_rms{Index(normalized.at(0)), {}, ek::Affine::off};
  refuses([&] { layer.forward(ek::serial, x, y); });
  refuses([&] { bare_layer.forward(ek::serial, x, y); });
  refuses([&] { rms.forward(ek::serial, x, y); });
  refuses([&] { bare_rms.forward(ek::serial, x, y); });
  CHECK((y.array() == 77).all());

  Eigen::Tensor<float, 1, Eigen::RowMajor> vector(Index(c.values("/inputs/rank1_batch_norm").at(0))), vector_y(vector);
  vector.setConstant(1);
  vector_y.setConstant(77);
  ek::BatchNormSaved<float> saved;
  refuses([&] { ek::batch_norm(ek::serial, vector, ek::none, ek::none, vector_y, saved); });
  for (Index i = 0; i < vector_y.size(); ++i) CHECK(vector_y(i) == 77);
}

// eps = 0: a row (or channel) of zeros gives y = bias and dx = 0 in every norm, and never a NaN.
void check_eps_zero(const Case& c) {
  CHECK(c.text("/expected/never") == "nan");
  CHECK(c.text("/expected/any_of/0") == "error at construction");  // the library has the other rule
  CHECK(c.text("/expected/any_of/1") == "y == beta and dx == 0 for x0, y == [1,-1] for x1");
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string&) {
    RowCase zeros = row_case(c, "/inputs/x0");
    zeros.dy = {1, -2, 3, 0.5};
    zeros.weight = {2, -1, 0.5, 3};
    for (const RowResult& result : run_everywhere<T, RmsNormUnderTest>(zeros)) {
      CHECK(difference(result.y, Values(4, 0), {}) == "");
      CHECK(difference(result.dx, Values(4, 0), {}) == "");
    }
    zeros.bias = {1, 0, -2, 0.25};
    for (const RowResult& result : run_everywhere<T, LayerNormUnderTest>(zeros)) {
      CHECK(difference(result.y, zeros.bias, {}) == "");
      CHECK(difference(result.dx, Values(4, 0), {}) == "");
    }
    const RowCase pair = row_case(c, "/inputs/x1");
    for (const RowResult& result : run_everywhere<T, LayerNormUnderTest>(pair))
      CHECK(difference(result.y, {1, -1}, {}) == "");

    ChannelCase channel;
    channel.samples = 4;
    channel.channels = 1;
    channel.x = c.values("/inputs/x0");
    channel.dy = zeros.dy;
    channel.weight = {2};
    channel.bias = {-1.5};
    channel.eps = c.number("/params/eps");
    for (const ChannelResult& result : run_channels_everywhere<T>(channel)) {
      CHECK(difference(result.y, Values(4, -1.5), {}) == "");
      CHECK(difference(result.dx, Values(4, 0), {}) == "");
    }
    // As one sample of a group of two channels, of which each has a bias of its own.
    channel.norm = ChannelNorm::group;
    channel.samples = channel.groups = 1;
    channel.channels = channel.positions = 2;
    channel.weight = {2, -1};
    channel.bias = {-1.5, 0.25};
    for (const ChannelResult& result : run_channels_everywhere<T>(channel)) {
      CHECK(difference(result.y, {-1.5, -1.5, 0.25, 0.25}, {}) == "");
      CHECK(difference(result.dx, Values(4, 0), {}) == "");
    }
    // The pair is the batch of a channel, or the positions of a group.
    ChannelCase of_pair;
    of_pair.samples = pair.length;
    of_pair.channels = of_pair.groups = 1;
    of_pair.x = pair.x;
    of_pair.eps = channel.eps;
    for (const ChannelResult& result : run_channels_everywhere<T>(of_pair))
      CHECK(difference(result.y, {1, -1}, {}) == "");
    of_pair.norm = ChannelNorm::group;
    std::swap(of_pair.samples, of_pair.positions);
    for (const ChannelResult& result : run_channels_everywhere<T>(of_pair))
      CHECK(difference(result.y, {1, -1}, {}) == "");
  });
}

}  // namespace

void cases_test::add_row_norm_cases(Table& table) {
  table["layer_norm.forward and rms_norm.forward"] = check_both_forward;
  table["rms_norm.forward, layer_norm.forward"] = check_both_lists;
  table["layer_norm, rms_norm construction"] = check_construction;
  table["layer_norm.forward, batch_norm.forward_train, group_norm.forward, rms_norm.forward"] = check_eps_zero;
}
