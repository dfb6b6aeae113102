/// RMSNorm with a gate, in one pass. The norm behind the state-space mixer of T. Dao, A. Gu, "Transformers are SSMs",
/// 2024 (Mamba-2), whose code knows both orders.
///
///     silu(z) = z / (1 + exp(-z)),  g = silu(gate)
///     norm_then_gate   y = rms_norm(x) * weight * g
///     gate_then_norm   y = rms_norm(x * g) * weight
///
/// The gradients are those of rms_norm at dy * g and x, or at dy and x * g, and
///     norm_then_gate   dgate = dy * rms_norm(x) * weight * silu'(gate)
///     gate_then_norm   dx = dv * g,  dgate = dv * x * silu'(gate),  dv the gradient with respect to x * g
#pragma once

#include "evenkeel/detail/curve_math.hpp"
#include "evenkeel/detail/wrapped_math.hpp"
#include "evenkeel/norms/rms_norm.hpp"

#include <cstdint>
#include <tuple>
#include <type_traits>

namespace evenkeel {

/// Which comes first.
enum class GateOrder {
  norm_then_gate,  ///< y = rms_norm(x) * weight * silu(gate)
  gate_then_norm   ///< y = rms_norm(x * silu(gate)) * weight: the default of Mamba-2's layer
};

namespace detail {

/// silu(z) and its slope, from one exponential.
template <class V>
struct Gate {
  V value, slope;
};
EVENKEEL_MATH template <class V>
EVENKEEL_HD Gate<V> silu_gate(const V& z) {
  const Logistic<V> of_z = logistic(z);
  const V bend = z * of_z.rest;
  return {z * of_z.s, of_z.s * (bend + splat<V>(1))};
}

/// Wraps a norm's forward. Inputs x, gate; parameter weight; output y.
template <class Norm, GateOrder Order>
struct GatedForward : WrappedMath<Norm> {
  static constexpr bool gate_first = Order == GateOrder::gate_then_norm;
  using WrappedMath<Norm>::norm;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& x, const S& gate) const {
    return norm.start(known, normed(x, gate));
  }
  EVENKEEL_MATH template <class V, class Start, class W>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, 0>& terms, const Start& start, const V& x,
                              const V& gate, const W& weight) const {
    norm.accumulate(s, terms, start, normed(x, gate), weight, None{});
  }
  template <class W>
  static double magnitude(double x, double gate, const W&) {
    return Norm::magnitude(normed(x, gate));
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    return GatedForward<std::remove_const_t<decltype(wide)>, Order>{{wide}};
  }
  EVENKEEL_MATH template <class V, class Row, class W>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row& row, const V& x, const V& gate, const W& weight) const {
    norm.write(y, row, normed(x, gate), weight, None{});
    if constexpr (!gate_first) y[0] = y[0] * SiluCurve::value(gate);
  }

 private:
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V normed(const V& x, const V& gate) {
    if constexpr (gate_first)
      return x * SiluCurve::value(gate);
    else
      return x;
  }
};

/// Wraps the backward of RMSNorm, beside its forward. Inputs dy, x, gate; parameter weight; outputs dx, dgate.
template <class Forward, class Norm, GateOrder Order>
struct GatedBackward : WrappedMath<Norm> {
  static constexpr int outputs = 2;
  static constexpr bool gate_first = Order == GateOrder::gate_then_norm;
  using WrappedMath<Norm>::norm;

  Forward forward;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& dy, const S& x, const S& gate) const {
    const S g = SiluCurve::value(gate);
    if constexpr (gate_first)
      return norm.start(known, dy, S(x * g), None{});
    else
      return norm.start(known, S(dy * g), x, None{});
  }
  EVENKEEL_MATH template <class V, class Start, class W>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, Norm::feature_sums>& terms, const Start& start,
                              const V& dy, const V& x, const V& gate, const W& weight) const {
    const V g = SiluCurve::value(gate);
    if constexpr (gate_first)
      norm.accumulate(s, terms, start, dy, V(x * g), None{}, weight);
    else
      norm.accumulate(s, terms, start, V(dy * g), x, None{}, weight);
  }
  template <class W>
  static double magnitude(double dy, double x, double gate, const W&) {
    return Norm::magnitude(dy, gate_first ? x * SiluCurve::value(gate) : x, None{});
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    const auto wide_forward = forward.careful(largest, length);
    return GatedBackward<std::remove_const_t<decltype(wide_forward)>, std::remove_const_t<decltype(wide)>, Order>{
        {wide}, wide_forward};
  }
  /// The slope meets the factor that is in proportion to x or dy first: it may be all that keeps the product finite.
  EVENKEEL_MATH template <class V, class S, class W>
  EVENKEEL_HD void write(Values<V, 2>& out, const typename Norm::template Row<S>& row, const V& dy, const V& x,
                         const V& gate, const W& weight) const {
    const Gate<V> g = silu_gate(gate);
    Values<V, 1> d;
    if constexpr (gate_first) {
      norm.write(d, row, dy, V(x * g.value), None{}, weight);
      out[0] = d[0] * g.value;
      const V slope = x * g.slope;
      out[1] = d[0] * slope;
    } else {
      norm.write(d, row, V(dy * g.value), x, None{}, weight);
      out[0] = d[0];
      forward.write(d, RmsRow<S>{row.rstd}, x, weight, None{});
      const V slope = dy * g.slope;
      out[1] = d[0] * slope;
    }
  }
};

}  // namespace detail

/// Options of gated_rms_norm.
struct GatedRmsNormOptions {
  double eps = 1e-5;  ///< added to the mean square, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};     ///< the normalized axis or neighbouring axes
  GateOrder order = GateOrder::norm_then_gate;
  bool unit_offset = false;  ///< 1 + weight in place of weight, the sum formed in the accumulator type
};

/// Statistics that gated_rms_norm leaves for its backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class GatedRmsNormSaved : public detail::SavedRows<A, 1, Storage> {
 public:
  A rstd(Index row) const { return this->field(0, row); }

  GateOrder order = GateOrder::norm_then_gate;
  bool gate_overwritten = false;
};

inline namespace EVENKEEL_ISA {

/// y = rms_norm(x) * weight * silu(gate), or y = rms_norm(x * silu(gate)) * weight, as the option order says.
///
/// x, gate, y   any shape, the same for all; y may be x or gate itself, then no backward is possible
/// weight       length values of any scalar type, or ek::none
/// saved        receives rstd per row, or ek::none for inference
/// Writes y and saved, everything in the accumulator type. Throws ShapeError before any work. The eps stands inside the
/// root. Products of x and silu(gate) may leave the range of float, not that of double. silu is 0 for gates below -87
/// (float) or -708 (double), but where the row is out of range as a whole; with eps = 0 a backward needs an rstd that
/// the accumulator type can hold. Allocates nothing but what saved lacks.
/// Example: tests/norms/gated_rms_norm_test.cpp.
template <class Device, class X, class GateX, class Weight, class Y, class Saved>
  requires detail::SavedOrNone<Saved, GatedRmsNormSaved, X>
void gated_rms_norm(const Device& device, const X& x, const GateX& gate, const Weight& weight, Y&& y, Saved&& saved,
                    const GatedRmsNormOptions& options = {}) {
  detail::require_device<Device>();
  constexpr const char* function = "gated_rms_norm";
  using T = detail::scalar_t<const X>;
  using A = accumulator_t<T>;
  detail::RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, options.axis);
  const auto gate_rows = arguments.input("gate", gate);
  const auto w = arguments.parameter("weight", weight);
  const A eps = detail::resolved_eps<A>(function, options.eps);
  const auto out = arguments.output("y", y);
  const detail::RowGrid grid = arguments.grid();
  const auto kept = [&] {
    if constexpr (is_none_v<Saved>) {
      return none;
    } else {
      saved.order = options.order;
      saved.gate_overwritten = grid.rows() > 0 && static_cast<const void*>(out.data) == gate_rows.data;
      return saved.begin({grid.rows(), grid.length, scalar_name<T>(), options.axis, options.unit_offset,
                          !is_none_v<Weight>, static_cast<const void*>(out.data) == rows.data});
    }
  }();
  detail::with_affine<Device, T>(w, options.unit_offset, detail::RoundOnce{}, [&](auto affine, const auto& weights) {
    using Norm = typename detail::Rms::template Forward<A, decltype(affine)>;
    const Norm norm{A(1) / static_cast<A>(grid.length), eps};
    const auto run = [&](const auto& math) {
      detail::row_pass(device, detail::RowPass{math, grid, std::tuple(rows, gate_rows), std::tuple(weights),
                                               std::tuple(out), none, kept});
    };
    if (options.order == GateOrder::norm_then_gate)
      run(detail::GatedForward<Norm, GateOrder::norm_then_gate>{{norm}});
    else
      run(detail::GatedForward<Norm, GateOrder::gate_then_norm>{{norm}});
  });
}

/// The gradients of gated_rms_norm.
///
/// dy, x, gate, dx, dgate   the shape of the forward's x; dx and dgate may each be any one of the inputs itself
/// weight                   the forward's, ek::none where it had none
/// saved                    filled by the forward
/// dweight                  length values, or ek::none where it is not wanted; accumulated, or overwritten as
///                          `mode` says
/// Writes dx and dgate. Throws ShapeError before any work, also where saved does not belong to x.
template <class Device, class Dy, class X, class GateX, class Weight, class A, class Storage, class Dx, class Dgate,
          class Dweight>
void gated_rms_norm_backward(const Device& device, const Dy& dy, const X& x, const GateX& gate, const Weight& weight,
                             GatedRmsNormSaved<A, Storage>& saved, Dx&& dx, Dgate&& dgate, Dweight&& dweight,
                             GradientMode mode = GradientMode::accumulate) {
  detail::require_device<Device>();
  static_assert(!is_none_v<Weight> || is_none_v<Dweight>, "evenkeel: there is no weight that dweight could belong to");
  constexpr const char* function = "gated_rms_norm_backward";
  using T = detail::scalar_t<const X>;
  static_assert(std::is_same_v<A, accumulator_t<T>>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  using Terms = detail::ParameterTerms<!is_none_v<Dweight>, false>;
  saved.check_filled(function);
  detail::RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, saved.call.axis);
  const detail::RowGrid grid = arguments.grid();
  saved.check(function, "x", grid.rows(), grid.length, scalar_name<T>(), !is_none_v<Weight>);
  if (saved.gate_overwritten)
    detail::throw_shape_error(function,
                              "saved comes from a forward that has overwritten gate; expected a forward whose "
                              "y is not its gate");
  const auto dy_rows = arguments.input("dy", dy);
  const auto gate_rows = arguments.input("gate", gate);
  const auto w = arguments.parameter("weight", weight);
  const auto dw = arguments.parameter("dweight", dweight);
  const auto dx_rows = arguments.output("dx", dx);
  const auto dgate_rows = arguments.output("dgate", dgate);
  saved.scratch.ensure(detail::feature_scratch<A, Terms::count>(device, grid.rows(), grid.length));
  A* const scratch = saved.scratch.data();
  const A* const known = saved.statistics.data();
  detail::FeatureParts sums{};
  detail::with_affine<Device, T>(w, saved.call.unit_offset, detail::RoundOnce{}, [&](auto affine, const auto& weights) {
    using Forward = typename detail::Rms::template Forward<A, decltype(affine)>;
    using Norm = typename detail::Rms::template Backward<A, decltype(affine), Terms>;
    const A inv_n = A(1) / static_cast<A>(grid.length);
    const auto run = [&](const auto& math) {
      sums = detail::row_pass(device,
                              detail::RowPass{math, grid, std::tuple(dy_rows, rows, gate_rows), std::tuple(weights),
                                              std::tuple(dx_rows, dgate_rows), known},
                              scratch);
    };
    // The forward only writes here, for which it needs no eps.
    if (saved.order == GateOrder::norm_then_gate)
      run(detail::GatedBackward<Forward, Norm, GateOrder::norm_then_gate>{{Norm{inv_n}}, Forward{inv_n, A(0)}});
    else
      run(detail::GatedBackward<Forward, Norm, GateOrder::gate_then_norm>{{Norm{inv_n}}, Forward{inv_n, A(0)}});
  });
  detail::put_gradients(device, scratch, sums, grid.length, mode, dw);
}

/// gated_rms_norm with its weight (ones at first; zeros with unit_offset), gradient and saved statistics.
///
///     ek::GatedRmsNorm<float> norm(width);
///     norm.forward(device, x, gate, y);
///     norm.backward(device, dy, x, gate, dx, dgate);
template <class T, class Storage = HostStorage>
class GatedRmsNorm {
 public:
  using Scalar = T;
  using Options = GatedRmsNormOptions;

  /// `features` is the length of the normalized axes together. Throws ShapeError if it is below 1.
  explicit GatedRmsNorm(Index features, const Options& options = {})
      : weight("weight", checked(features), false), options_(options) {
    weight.fill(T(options.unit_offset ? 0 : 1));
  }

  /// y may be x or gate, then no backward is possible.
  template <class Device, class X, class GateX, class Y>
  void forward(const Device& device, const X& x, const GateX& gate, Y&& y) {
    gated_rms_norm(device, x, gate, map(weight.value()), y, saved, options_);
  }

  /// dx and dgate are written, the gradient of weight is accumulated. x and gate are the forward's.
  template <class Device, class Dy, class X, class GateX, class Dx, class Dgate>
  void backward(const Device& device, const Dy& dy, const X& x, const GateX& gate, Dx&& dx, Dgate&& dgate,
                GradientMode mode = GradientMode::accumulate) {
    gated_rms_norm_backward(device, dy, x, gate, map(weight.value()), saved, dx, dgate, map(weight.gradient()), mode);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    f(weight.ref());
  }

  Index features() const { return weight.size(); }
  const Options& options() const { return options_; }

  Parameter<T, Storage> weight;  // (features)
  GatedRmsNormSaved<accumulator_t<T>, Storage> saved;

 private:
  static Index checked(Index features) {
    if (features < 1)
      detail::throw_shape_error("GatedRmsNorm::GatedRmsNorm", "the layer has ", features,
                                " features, expected 1 or more");
    return features;
  }
  auto map(T* data) const { return Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(data, features()); }

  Options options_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
