/// pRMSNorm: RMSNorm whose statistics come from the first features alone. B. Zhang, R. Sennrich, "Root Mean Square
/// Layer Normalization", 2019, section 4, with eps inside the root.
///
///     rstd = 1/sqrt(mean of x^2 over the first p features + eps),  xhat = x * rstd,  y = xhat * weight (+ bias)
///     h = dy * weight,  dx = rstd * (h - [among the first p] * xhat * sum(h * xhat)/p)
///     dweight = sum over rows of dy * xhat
///
/// To the loop over rows this is RMSNorm with one more parameter, 1 for the features that count and 0 for the rest.
#pragma once

#include "evenkeel/detail/wrapped_math.hpp"
#include "evenkeel/norms/rms_norm.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>

namespace evenkeel {
namespace detail {

/// Wraps the forward of RMSNorm, whose inv_n is 1/used. Parameters indicator, weight, bias.
template <class Norm>
struct PartialForward : WrappedMath<Norm> {
  using WrappedMath<Norm>::norm;

  std::int64_t used;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& first) const {
    return norm.start(known, first);
  }
  EVENKEEL_MATH template <class V, class Start, class I, class W, class B>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, 0>& terms, const Start& start, const V& x,
                              const I& indicator, const W& weight, const B& bias) const {
    norm.accumulate(s, terms, start, where(indicator, x), weight, bias);
  }
  template <class W, class B>
  static double magnitude(double x, double indicator, const W&, const B&) {
    return where(indicator, x);
  }
  auto careful(double largest, std::int64_t) const {
    const auto wide = norm.careful(largest, used);
    return PartialForward<std::remove_const_t<decltype(wide)>>{{wide}, used};
  }
  EVENKEEL_MATH template <class V, class Row, class I, class W, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row& row, const V& x, const I&, const W& weight, const B& bias) const {
    norm.write(y, row, x, weight, bias);
  }
};

/// Wraps the backward of RMSNorm, whose inv_n is 1/used. Inputs dy, x; parameters indicator, weight; output dx.
template <class Norm>
struct PartialBackward : WrappedMath<Norm> {
  using WrappedMath<Norm>::norm;

  std::int64_t used;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& dy, const S& x) const {
    return norm.start(known, dy, x, None{});
  }
  EVENKEEL_MATH template <class V, class Start, class I, class W>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, Norm::feature_sums>& terms, const Start& start,
                              const V& dy, const V& x, const I&, const W& weight) const {
    norm.accumulate(s, terms, start, dy, x, None{}, weight);
  }
  template <class W>
  static double magnitude(double, double x, double indicator, const W&) {
    return where(indicator, x);
  }
  auto careful(double largest, std::int64_t) const {
    const auto wide = norm.careful(largest, used);
    return PartialBackward<std::remove_const_t<decltype(wide)>>{{wide}, used};
  }
  EVENKEEL_MATH template <class V, class Row, class I, class W>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row& row, const V& dy, const V& x, const I& indicator,
                         const W& weight) const {
    norm.write(dx, row, dy, where(indicator, x), None{}, weight);
  }
};

}  // namespace detail

/// Options of partial_rms_norm.
struct PartialRmsNormOptions {
  double eps = 1e-6;         ///< added to the mean square, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};            ///< the normalized axis or neighbouring axes
  Index features_used = 0;   ///< p, the features that the statistics are taken over; 0: what fraction says
  double fraction = 0.0625;  ///< p = features * fraction, rounded down and at least 1: the paper's 6.25%
  bool unit_offset = false;  ///< y = xhat * (1 + weight), the sum formed in the accumulator type
  Rounding rounding = Rounding::round_once;
};

/// Statistics that partial_rms_norm leaves for its backward, and scratch of both. A is the accumulator type of the
/// data.
template <class A, class Storage = HostStorage>
class PartialRmsNormSaved : public detail::SavedRows<A, 1, Storage> {
 public:
  A rstd(Index row) const { return this->field(0, row); }

  /// Makes room for a forward and a backward over x, so that neither allocates.
  template <class Device, class X>
  void reserve(const Device& device, const X& x, const Axes& axis = {}) {
    detail::SavedRows<A, 1, Storage>::reserve(device, x, axis);
    detail::RowArguments arguments("reserve");
    arguments.reference("x", x, axis);
    indicator.reserve(arguments.grid().length);
  }

  Index features_used = 0;                         ///< of the last forward
  typename Storage::template Buffer<A> indicator;  // (length)
};

namespace detail {

/// The number of features that the statistics are taken over.
inline Index features_used(const char* function, const PartialRmsNormOptions& options, Index features) {
  if (options.features_used < 0 || options.features_used > features)
    throw_shape_error(function, "features_used is ", options.features_used, ", x has ", features, " features");
  if (options.features_used > 0) return options.features_used;
  if (!(options.fraction > 0 && options.fraction <= 1))
    throw_shape_error(function, "fraction is ", options.fraction, ", expected more than 0 and at most 1");
  return std::max<Index>(1, static_cast<Index>(std::floor(options.fraction * static_cast<double>(features))));
}

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// y = x * rstd * weight + bias, row by row, rstd from the first features of each row.
///
/// x, y           any shape, the same for both; y may be x itself, then no backward is possible
/// weight, bias   length values of any scalar type, or ek::none
/// saved          receives rstd per row, and has scratch for the forward: needed for inference, too
/// Writes y and saved. Throws ShapeError before any work. The eps stands inside the root.
/// Allocates nothing but what saved lacks. Example: tests/norms/partial_rms_norm_test.cpp.
template <class Device, class X, class Weight, class Bias, class Y, class A, class Storage>
void partial_rms_norm(const Device& device, const X& x, const Weight& weight, const Bias& bias, Y&& y,
                      PartialRmsNormSaved<A, Storage>& saved, const PartialRmsNormOptions& options = {}) {
  detail::require_device<Device>();
  constexpr const char* function = "partial_rms_norm";
  using T = detail::scalar_t<const X>;
  static_assert(std::is_same_v<A, accumulator_t<T>>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  detail::RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, options.axis);
  const auto w = arguments.parameter("weight", weight);
  const auto b = arguments.parameter("bias", bias);
  const A eps = detail::resolved_eps<A>(function, options.eps);
  const detail::RowGrid grid = arguments.grid();
  const Index used = detail::features_used(function, options, grid.length);
  const auto out = arguments.output("y", y);
  A* const kept = saved.begin({grid.rows(), grid.length, scalar_name<T>(), options.axis, options.unit_offset,
                               !is_none_v<Weight>, static_cast<const void*>(out.data) == rows.data});
  saved.features_used = used;
  saved.indicator.ensure(grid.length);
  detail::put_indicator(device, saved.indicator.data(), grid.length, used);
  const A* const indicator = saved.indicator.data();
  detail::with_affine<Device, T>(w, options.unit_offset, options.rounding, [&](auto affine, const auto& weights) {
    using Norm = typename detail::Rms::template Forward<A, decltype(affine)>;
    const detail::PartialForward<Norm> math{{Norm{A(1) / static_cast<A>(used), eps}}, used};
    detail::row_pass(device, detail::RowPass{math, grid, std::tuple(rows), std::tuple(indicator, weights, b),
                                             std::tuple(out), none, kept});
  });
}

/// The gradients of partial_rms_norm.
///
/// dy, x, dx        the shape of the forward's x; dx may be dy itself
/// weight           the forward's, ek::none where it had none
/// saved            filled by the forward
/// dweight, dbias   length values, or ek::none where they are not wanted; accumulated, or overwritten as `mode` says
/// Writes dx. Throws ShapeError before any work, also where saved does not belong to x.
template <class Device, class Dy, class X, class Weight, class A, class Storage, class Dx, class Dweight, class Dbias>
void partial_rms_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                               PartialRmsNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                               GradientMode mode = GradientMode::accumulate) {
  detail::require_device<Device>();
  static_assert(!is_none_v<Weight> || is_none_v<Dweight>, "evenkeel: there is no weight that dweight could belong to");
  constexpr const char* function = "partial_rms_norm_backward";
  using T = detail::scalar_t<const X>;
  static_assert(std::is_same_v<A, accumulator_t<T>>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  using Terms = detail::ParameterTerms<!is_none_v<Dweight>, !is_none_v<Dbias>>;
  saved.check_filled(function);
  detail::RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, saved.call.axis);
  const detail::RowGrid grid = arguments.grid();
  saved.check(function, "x", grid.rows(), grid.length, scalar_name<T>(), !is_none_v<Weight>);
  const auto dy_rows = arguments.input("dy", dy);
  const auto w = arguments.parameter("weight", weight);
  const auto dw = arguments.parameter("dweight", dweight);
  const auto db = arguments.parameter("dbias", dbias);
  const auto dx_rows = arguments.output("dx", dx);
  saved.scratch.ensure(detail::feature_scratch<A, Terms::count>(device, grid.rows(), grid.length));
  A* const scratch = saved.scratch.data();
  const A* const known = saved.statistics.data();
  const A* const indicator = saved.indicator.data();
  detail::FeatureParts sums{};
  detail::with_affine<Device, T>(w, saved.call.unit_offset, detail::RoundOnce{}, [&](auto affine, const auto& weights) {
    using Norm = typename detail::Rms::template Backward<A, decltype(affine), Terms>;
    const Index used = saved.features_used;
    const detail::PartialBackward<Norm> math{{Norm{A(1) / static_cast<A>(used)}}, used};
    sums = detail::row_pass(device,
                            detail::RowPass{math, grid, std::tuple(dy_rows, rows), std::tuple(indicator, weights),
                                            std::tuple(dx_rows), known},
                            scratch);
  });
  detail::put_gradients(device, scratch, sums, grid.length, mode, dw, db);
}

/// partial_rms_norm with its weight (ones at first; zeros with unit_offset), gradient and saved statistics.
///
///     ek::PartialRmsNorm<float> norm(width);
///     norm.forward(device, x, y);
///     norm.backward(device, dy, x, dx);
template <class T, class Storage = HostStorage>
class PartialRmsNorm {
 public:
  using Scalar = T;
  using Options = PartialRmsNormOptions;

  /// `features` is the length of the normalized axes together. Throws ShapeError if it is below 1, or below
  /// features_used.
  explicit PartialRmsNorm(Index features, const Options& options = {})
      : weight("weight", checked(features, options), false), options_(options) {
    weight.fill(T(options.unit_offset ? 0 : 1));
  }

  /// y may be x, then no backward is possible.
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    partial_rms_norm(device, x, map(weight.value()), none, y, saved, options_);
  }

  /// dx is written, the gradient of weight is accumulated. x is the forward's.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx, GradientMode mode = GradientMode::accumulate) {
    partial_rms_norm_backward(device, dy, x, map(weight.value()), saved, dx, map(weight.gradient()), none, mode);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    f(weight.ref());
  }

  Index features() const { return weight.size(); }
  const Options& options() const { return options_; }

  Parameter<T, Storage> weight;  // (features)
  PartialRmsNormSaved<accumulator_t<T>, Storage> saved;

 private:
  static Index checked(Index features, const Options& options) {
    constexpr const char* function = "PartialRmsNorm::PartialRmsNorm";
    if (features < 1) detail::throw_shape_error(function, "the layer has ", features, " features, expected 1 or more");
    detail::features_used(function, options, features);
    return features;
  }
  auto map(T* data) const { return Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(data, features()); }

  Options options_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
