/// BatchNorm in training mode: standardizes each channel over the batch and all positions. S. Ioffe, C. Szegedy, "Batch
/// Normalization", 2015, algorithm 1.
///
///     per channel: mean, biased var of its n values;  xhat = (x - mean)/sqrt(var + eps),  y = xhat * weight + bias
///     dweight = sum(dy * xhat),  dbias = sum(dy),  dx = weight * rstd * (dy - dbias/n - xhat * dweight/n)
///
/// Three steps that can be taken apart: moments of each channel, what they become (here the exchange between processes
/// will stand), and the application.
#pragma once

#include "evenkeel/detail/affine_math.hpp"
#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/channel_cpu.hpp"
#include "evenkeel/detail/standardize_math.hpp"
#include "evenkeel/moments.hpp"
#include "evenkeel/storage.hpp"

#include <cmath>
#include <string>
#include <tuple>

namespace evenkeel {
namespace detail {

/// Sums to moments.
template <class A>
struct MomentsMath {
  using Scalar = A;
  static constexpr int sums = 2, feature_sums = 0, outputs = 0;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {
    V shift;
  };
  template <class V>
  struct Row {
    V shift, delta, M2;
  };

  double inv_n;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S& first) const {
    return {first};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 2>& s, Values<V, 0>&, const Start<S>& start, const V& x) const {
    const V shifted = x - start.shift;
    s[0] += shifted;
    s[1] += shifted * shifted;
  }
  EVENKEEL_HD Row<A> finish(const Values<double, 2>& s, const Start<A>& start) const {
    const double delta = s[0] * inv_n, M2 = s[1] - delta * s[0];
    return {start.shift, static_cast<A>(delta), static_cast<A>(max(M2, 0.0))};
  }
  /// As in StandardizeForward: a channel whose first element lies far out starts over from its mean.
  EVENKEEL_HD Start<A> restart(const Start<A>& start, const Row<A>& row) const {
    const A limit = A(16) * row.M2 * static_cast<A>(inv_n);
    return {select_less(limit, row.delta * row.delta, start.shift + row.delta, start.shift)};
  }
};

template <class A>
struct BatchNormWrite {
  using Scalar = A;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  using Row = StandardizeRow<V>;

  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>& row, const V& x, const W& weight, const B& bias) const {
    y[0] = AffineMath<false, None>::apply(row.xhat(x), weight, bias);
  }
};

template <class A>
struct BatchNormGradientSums {
  using Scalar = A;
  static constexpr int sums = 2, feature_sums = 0, outputs = 0;
  template <class V>
  using Known = StandardizeRow<V>;
  template <class V>
  using Start = StandardizeRow<V>;
  template <class V>
  struct Row {
    V dy, dy_xhat;
  };

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 2>& s, Values<V, 0>&, const Start<S>& start, const V& dy, const V& x) const {
    s[0] += dy;
    s[1] += dy * start.xhat(x);
  }
  EVENKEEL_HD Row<A> finish(const Values<double, 2>& s, const Start<A>&) const {
    return {static_cast<A>(s[0]), static_cast<A>(s[1])};
  }
};

template <class A>
struct BatchNormGradientWrite {
  using Scalar = A;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {
    V mean, rest, rstd, mean_dy, mean_dy_xhat;
  };

  EVENKEEL_MATH template <class V, class S, class W>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row<S>& row, const V& dy, const V& x, const W& weight) const {
    const V xhat = StandardizeRow<S>{row.mean, row.rest, row.rstd}.xhat(x);
    const V centred = dy - row.mean_dy;
    const V tangent = centred - xhat * row.mean_dy_xhat;
    dx[0] = AffineMath<false, None>::pull(V(tangent * row.rstd), weight);
  }
};

}  // namespace detail

/// Options of batch_norm.
struct BatchNormOptions {
  double eps = 1e-5;  ///< added to the variance, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = 1;      ///< the channel axis
};

/// Statistics that batch_norm leaves for batch_norm_backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class BatchNormSaved {
 public:
  using Scalar = A;

  Index channels() const { return channels_; }
  Moments<A> moments(Index channel) const {
    return {static_cast<std::int64_t>(count_), field(0, channel), field(1, channel), field(3, channel)};
  }
  A mean(Index channel) const { return field(0, channel); }
  A rstd(Index channel) const { return field(2, channel); }

  /// Makes room for a forward and a backward over x, so that neither allocates.
  template <class Device, class X>
  void reserve(const Device&, const X& x, const Axes& axis = 1) {
    detail::RowArguments arguments("reserve");
    arguments.reference("x", x, axis);
    const Index channels = arguments.grid().length;
    statistics_.reserve(4 * channels);
    scratch_.reserve(7 * channels);
  }

  // What batch_norm and batch_norm_backward keep here.
  A field(int k, Index channel) const { return statistics_.data()[k * channels_ + channel]; }
  Index channels_ = 0;
  Index count_ = 0;  // values per channel; 0: nothing saved yet
  Axes axis_;
  bool has_weight_ = false, in_place_ = false;
  typename Storage::template Buffer<A> statistics_;  // (mean | rest | rstd | M2, channels)
  typename Storage::template Buffer<A> scratch_;     // (7, channels)
};

inline namespace EVENKEEL_ISA {

/// y = (x - mean) * rstd * weight + bias with each channel's statistics over the batch and all positions.
///
/// x, y          any shape with a channel axis (options.axis, 1 by default); y may be x itself, then no backward is
/// possible weight, bias  one value per channel, or ek::none saved         receives the moments and rstd of each
/// channel Writes y and saved. Throws ShapeError before any work, also for fewer than two values per channel. The eps
/// stands inside the root. Allocates nothing but what saved lacks. Example: tests/norms/batch_norm_test.cpp.
template <class Device, class X, class Weight, class Bias, class Y, class A, class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm(const Device& device, const X& x, const Weight& weight, const Bias& bias, Y&& y,
                BatchNormSaved<A, Storage>& saved, const BatchNormOptions& options = {}) {
  using namespace detail;
  const char* const function = "batch_norm";
  RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, options.axis);
  const RowGrid grid = arguments.grid();
  const auto w = arguments.parameter("weight", weight, "channels");
  const auto b = arguments.parameter("bias", bias, "channels");
  const auto out = arguments.output("y", y);
  const A eps = resolved_eps<A>(function, options.eps);
  const Index channels = grid.length, count = grid.rows();
  if (count < 2)
    throw_shape_error(function, "x has ", count, " values per channel, expected 2 or more in training (",
                      arguments.shape(), ")");
  saved.channels_ = channels;
  saved.count_ = count;
  saved.axis_ = options.axis;
  saved.has_weight_ = !is_none_v<Weight>;
  saved.in_place_ = static_cast<const void*>(out.data) == rows.data;
  saved.statistics_.reserve(4 * channels);
  saved.scratch_.reserve(7 * channels);
  const double bytes = static_cast<double>(count) * static_cast<double>(channels) * sizeof(*rows.data);

  A* const moments = saved.scratch_.data();  // (shift | delta | M2, channels)
  channel_sums(device,
               RowPass{MomentsMath<A>{1.0 / static_cast<double>(count)}, grid, std::tuple(rows), std::tuple(),
                       std::tuple(), none, moments},
               bytes);
  A* const statistics = saved.statistics_.data();
  for (Index c = 0; c < channels; ++c) {
    const A M2 = moments[2 * channels + c];
    const auto row =
        standardize_row(moments[c], moments[channels + c], inverse_root(A(M2 / static_cast<A>(count) + eps)));
    statistics[c] = row.mean;
    statistics[channels + c] = row.rest;
    statistics[2 * channels + c] = row.rstd;
    statistics[3 * channels + c] = M2;
  }
  const A* const known = statistics;
  channel_write(device, RowPass{BatchNormWrite<A>{}, grid, std::tuple(rows), std::tuple(w, b), std::tuple(out), known},
                2 * bytes);
}

/// The gradients of batch_norm.
///
/// dy, x, dx        the shape of the forward's x; dx may be dy itself
/// weight           the forward's, ek::none where it had none
/// saved            filled by the forward
/// dweight, dbias   one value per channel, or ek::none where they are not wanted; accumulated, or overwritten as `mode`
/// says Writes dx. Throws ShapeError before any work, also where saved does not belong to x.
template <class Device, class Dy, class X, class Weight, class A, class Storage, class Dx, class Dweight, class Dbias>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                         BatchNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                         GradientMode mode = GradientMode::accumulate) {
  using namespace detail;
  static_assert(!is_none_v<Weight> || is_none_v<Dweight>, "evenkeel: there is no weight that dweight could belong to");
  const char* const function = "batch_norm_backward";
  if (saved.count_ == 0) throw_shape_error(function, "saved is empty, expected the one that the forward filled");
  RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, saved.axis_);
  const RowGrid grid = arguments.grid();
  const Index channels = grid.length;
  if (saved.channels_ != channels || saved.count_ != grid.rows())
    throw_shape_error(function, "saved holds ", saved.channels_, " channels of ", saved.count_, " values, ",
                      arguments.shape());
  if (saved.has_weight_ == is_none_v<Weight>)
    throw_shape_error(function, saved.has_weight_ ? "weight is none, the forward had one"
                                                  : "there is a weight, the forward had none");
  if (saved.in_place_)
    throw_shape_error(function,
                      "saved comes from an in-place forward, which has overwritten x; expected a forward whose y "
                      "is not its x");
  const auto dy_rows = arguments.input("dy", dy);
  const auto w = arguments.parameter("weight", weight, "channels");
  const auto dw = arguments.parameter("dweight", dweight, "channels");
  const auto db = arguments.parameter("dbias", dbias, "channels");
  const auto out = arguments.output("dx", dx);
  saved.scratch_.reserve(7 * channels);
  const double bytes = 2 * static_cast<double>(grid.rows()) * static_cast<double>(channels) * sizeof(*rows.data);

  const A* const statistics = saved.statistics_.data();
  A* const known = saved.scratch_.data();  // (mean | rest | rstd | mean_dy | mean_dy_xhat, channels)
  A* const sums = known + 5 * channels;    // (dy | dy_xhat, channels)
  channel_sums(device,
               RowPass{BatchNormGradientSums<A>{}, grid, std::tuple(dy_rows, rows), std::tuple(), std::tuple(),
                       statistics, sums},
               bytes);
  std::copy_n(statistics, 3 * channels, known);
  for (Index c = 0; c < 2 * channels; ++c) known[3 * channels + c] = sums[c] / static_cast<A>(saved.count_);
  const A* const read = known;
  channel_write(
      device,
      RowPass{BatchNormGradientWrite<A>{}, grid, std::tuple(dy_rows, rows), std::tuple(w), std::tuple(out), read},
      1.5 * bytes);
  put_gradient(dw, sums + channels, channels, mode);
  put_gradient(db, sums, channels, mode);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
