// One face for the norms, so that a check is written once and run on each of them, and the comparison with the
// reference.
#pragma once

#include "evenkeel/evenkeel.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/reference.hpp"
#include "support/scalars.hpp"
#include "support/shapes.hpp"
#include "support/tolerance.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace norms_test {

namespace ek = evenkeel;
using reference::Slab;
using reference::Values;
using support::Counts;

template <class T>
inline constexpr bool is_none = std::is_same_v<std::remove_cvref_t<T>, ek::None>;

struct RmsNormUnderTest {
  using Options = ek::RmsNormOptions;
  template <class A>
  using Saved = ek::RmsNormSaved<A>;
  template <class A>
  using Layer = ek::RmsNorm<A>;
  static constexpr bool centred = false;
  static constexpr const char* name = "rms_norm";

  template <class Device, class X, class W, class B, class Y, class S>
  static void forward(const Device& device, const X& x, const W& weight, const B& bias, Y&& y, S&& saved,
                      const Options& options) {
    if constexpr (is_none<B>) {
      ek::rms_norm(device, x, weight, y, saved, options);
    } else {
      ek::rms_norm(device, x, weight, bias, y, saved, options);
    }
  }
  template <class Device, class DY, class X, class W, class S, class DX, class DW, class DB>
  static void backward(const Device& device, const DY& dy, const X& x, const W& weight, S& saved, DX&& dx, DW&& dweight,
                       DB&& dbias, ek::GradientMode mode = ek::GradientMode::accumulate) {
    if constexpr (is_none<DB>) {
      ek::rms_norm_backward(device, dy, x, weight, saved, dx, dweight, mode);
    } else {
      ek::rms_norm_backward(device, dy, x, weight, saved, dx, dweight, dbias, mode);
    }
  }
  static auto reference(const Slab& s, const Values& x, const Values& w, const Values& b, const reference::Options& o) {
    return reference::rms_norm(s, x, w, b, o);
  }
  static auto reference_backward(const Slab& s, const Values& dy, const Values& x, const Values& w,
                                 const reference::Options& o) {
    return reference::rms_norm_backward(s, dy, x, w, o);
  }
};

struct LayerNormUnderTest {
  using Options = ek::LayerNormOptions;
  template <class A>
  using Saved = ek::LayerNormSaved<A>;
  template <class A>
  using Layer = ek::LayerNorm<A>;
  static constexpr bool centred = true;
  static constexpr const char* name = "layer_norm";

  template <class Device, class X, class W, class B, class Y, class S>
  static void forward(const Device& device, const X& x, const W& weight, const B& bias, Y&& y, S&& saved,
                      const Options& options) {
    ek::layer_norm(device, x, weight, bias, y, saved, options);
  }
  template <class Device, class DY, class X, class W, class S, class DX, class DW, class DB>
  static void backward(const Device& device, const DY& dy, const X& x, const W& weight, S& saved, DX&& dx, DW&& dweight,
                       DB&& dbias, ek::GradientMode mode = ek::GradientMode::accumulate) {
    ek::layer_norm_backward(device, dy, x, weight, saved, dx, dweight, dbias, mode);
  }
  static auto reference(const Slab& s, const Values& x, const Values& w, const Values& b, const reference::Options& o) {
    return reference::layer_norm(s, x, w, b, o);
  }
  static auto reference_backward(const Slab& s, const Values& dy, const Values& x, const Values& w,
                                 const reference::Options& o) {
    return reference::layer_norm_backward(s, dy, x, w, o);
  }
};

struct BatchNormUnderTest {
  using Options = ek::BatchNormOptions;
  template <class A>
  using Saved = ek::BatchNormSaved<A>;
  static constexpr bool centred = true;
  static constexpr const char* name = "batch_norm";

  template <class Device, class X, class W, class B, class Y, class S>
  static void forward(const Device& device, const X& x, const W& weight, const B& bias, Y&& y, S&& saved,
                      const Options& options) {
    ek::batch_norm(device, x, weight, bias, y, saved, options);
  }
  template <class Device, class DY, class X, class W, class S, class DX, class DW, class DB>
  static void backward(const Device& device, const DY& dy, const X& x, const W& weight, S& saved, DX&& dx, DW&& dweight,
                       DB&& dbias, ek::GradientMode mode = ek::GradientMode::accumulate) {
    ek::batch_norm_backward(device, dy, x, weight, saved, dx, dweight, dbias, mode);
  }
  static auto reference(const Slab& s, const Values& x, const Values& w, const Values& b, const reference::Options& o) {
    return reference::batch_norm(s, x, w, b, o);
  }
  static auto reference_backward(const Slab& s, const Values& dy, const Values& x, const Values& w,
                                 const reference::Options& o) {
    return reference::batch_norm_backward(s, dy, x, w, o);
  }
};

template <class T>
using RowMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using ColMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
template <class T>
using Vector = Eigen::Array<T, Eigen::Dynamic, 1>;

template <class T>
T nan_of() {
  return std::numeric_limits<T>::quiet_NaN();
}

template <class T>
Vector<T> vector_of(const Values& values) {
  Vector<T> v(Eigen::Index(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) v(Eigen::Index(i)) = static_cast<T>(values[i]);
  return v;
}

template <class Matrix>
Matrix matrix_of(std::size_t rows, std::size_t cols, const Values& memory) {
  Matrix m{Eigen::Index(rows), Eigen::Index(cols)};
  for (std::size_t i = 0; i < memory.size(); ++i) m.data()[i] = static_cast<typename Matrix::Scalar>(memory[i]);
  return m;
}

// In the order of memory. Strided views are packed by Eigen's own assignment first; tensors have no strides.
template <class X>
Values values_of(const X& x) {
  if constexpr (is_none<X>) {
    return {};
  } else if constexpr (requires { typename X::PlainObject; }) {
    const typename X::PlainObject plain = x;
    Values v(std::size_t(plain.size()));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = double(plain.data()[i]);
    return v;
  } else {
    Values v(std::size_t(x.size()));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = double(x.data()[i]);
    return v;
  }
}

template <class X>
void fill(X& x, const Values& memory) {
  if constexpr (requires { typename X::PlainObject; }) {
    typename X::PlainObject plain(x.rows(), x.cols());
    for (std::size_t i = 0; i < memory.size(); ++i) {
      plain.data()[i] = static_cast<typename X::Scalar>(memory[i]);
    }
    x = plain;
  } else {
    for (std::size_t i = 0; i < memory.size(); ++i) x.data()[i] = static_cast<typename X::Scalar>(memory[i]);
  }
}

// The largest error in units of the tolerance: up to 1 is right, infinity for NaN and for a wrong size.
inline double worst_error(const Values& got, const Values& expected, const Values& magnitude, std::size_t length,
                          double epsilon) {
  if (got.size() != expected.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - expected[i]);
    if (error == 0) continue;
    if (!(error < INFINITY)) return INFINITY;
    worst = std::max(worst, error / support::tolerance(length, magnitude[i], epsilon));
  }
  return worst;
}

template <class T>
inline double epsilon_of() {
  return double(std::numeric_limits<ek::accumulator_t<T>>::epsilon());
}

struct Data {
  Slab slab;
  std::size_t features;
  Values x, dy, weight, bias;
};

template <class T>
Data make_data(const Slab& slab, std::uint64_t seed, double mean = 0.25, double spread = 1.5) {
  return {slab,
          slab.length,
          support::normal<T>(slab.size(), seed, mean, spread),
          support::normal<T>(slab.size(), seed + 1),
          support::normal<T>(slab.length, seed + 2, 0.5),
          support::normal<T>(slab.length, seed + 3)};
}

// Forward and backward of `data` on the given tensors against the reference. y, dx and the parameter gradients start as
// NaN, so a place that nobody writes is seen.
template <class Norm, class Device, class X, class DY, class Y, class DX, class W, class B>
void check_against_reference(const Device& device, const Data& data, const X& x, const DY& dy, Y&& y, DX&& dx,
                             const W& weight, const B& bias, const typename Norm::Options& options, double eps) {
  using T = typename std::remove_cvref_t<X>::Scalar;
  const Values no_values;
  const Values& w = is_none<W> ? no_values : data.weight;
  const Values& b = is_none<B> ? no_values : data.bias;
  reference::Options expected_options{eps, false, {}};
  if constexpr (requires { options.unit_offset; }) expected_options.unit_offset = options.unit_offset;
  const double epsilon = epsilon_of<T>();
  const bool by_channel = std::is_same_v<Norm, BatchNormUnderTest>;
  const std::size_t summed = by_channel ? data.slab.rows() : data.slab.length;
  INFO(Norm::name << " of " << data.slab.outer << " x " << data.slab.length << " x " << data.slab.inner << ", eps "
                  << eps << ", weight " << !is_none<W> << ", bias " << !is_none<B> << ", unit offset "
                  << expected_options.unit_offset << ", scalar of " << sizeof(T) << " bytes");

  typename Norm::template Saved<ek::accumulator_t<T>> saved;
  fill(y, Values(data.x.size(), NAN));
  Norm::forward(device, x, weight, bias, y, saved, options);
  const auto forward = Norm::reference(data.slab, data.x, w, b, expected_options);
  CHECK(worst_error(values_of(y), forward.y, forward.y_magnitude, summed, epsilon) <= 1);

  fill(dx, Values(data.x.size(), NAN));
  const auto backward = Norm::reference_backward(data.slab, data.dy, data.x, w, expected_options);
  const auto check_parameter = [&](const Vector<T>& got, const Values& expected, const Values& magnitude) {
    CHECK(worst_error(values_of(got), expected, magnitude, data.slab.size(), epsilon) <= 1);
  };
  Vector<T> dweight = Vector<T>::Constant(Eigen::Index(data.features), nan_of<T>()), dbias = dweight;
  constexpr auto overwrite = ek::GradientMode::overwrite;
  if constexpr (is_none<W> && is_none<B>) {
    Norm::backward(device, dy, x, weight, saved, dx, ek::none, ek::none, overwrite);
  } else if constexpr (is_none<B>) {
    Norm::backward(device, dy, x, weight, saved, dx, dweight, ek::none, overwrite);
    check_parameter(dweight, backward.dweight, backward.dweight_magnitude);
  } else if constexpr (is_none<W>) {
    Norm::backward(device, dy, x, weight, saved, dx, ek::none, dbias, overwrite);
    check_parameter(dbias, backward.dbias, backward.dbias_magnitude);
  } else {
    Norm::backward(device, dy, x, weight, saved, dx, dweight, dbias, overwrite);
    check_parameter(dweight, backward.dweight, backward.dweight_magnitude);
    check_parameter(dbias, backward.dbias, backward.dbias_magnitude);
  }
  CHECK(worst_error(values_of(dx), backward.dx, backward.dx_magnitude, summed, epsilon) <= 1);
}

}  // namespace norms_test
