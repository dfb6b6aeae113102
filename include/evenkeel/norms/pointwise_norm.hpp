/// What DyT and Derf have in common, the layers without statistics that stand where a norm stood: y = weight * c(u) +
/// bias, u = alpha * x + shift, with a curve c and learned scalars alpha and, where the curve has one, shift.
///
///     h = dy * weight,  dx = h * c'(u) * alpha,  dalpha = sum of h * x * c'(u),  dshift = sum of h * c'(u)
///     dweight = sum over rows of dy * c(u),  dbias = sum over rows of dy
#pragma once

#include "evenkeel/detail/pointwise_math.hpp"
#include "evenkeel/norms/row_norm.hpp"

#include <tuple>
#include <type_traits>
#include <utility>

namespace evenkeel {
namespace detail {

inline namespace EVENKEEL_ISA {

/// The memory of a learned scalar or its gradient: a pointer, or an Eigen vector, matrix or tensor of one value.
template <class P>
auto scalar_parameter(const char* function, const char* name, P&& p) {
  if constexpr (is_none_v<P> || std::is_pointer_v<std::remove_cvref_t<P>>) {
    return p;
  } else {
    if (const Layout layout = layout_of(p); layout.size() != 1)
      throw_shape_error(function, name, " has ", layout.size(), " values, expected 1");
    return p.data();
  }
}

template <class Layer, class A, class Alpha, class Shift>
auto host_curve(const Alpha& alpha, const Shift& shift) {
  if constexpr (is_none_v<Shift>)
    return Layer::template curve<A>(static_cast<A>(*alpha), A(0));
  else
    return Layer::template curve<A>(static_cast<A>(*alpha), static_cast<A>(*shift));
}

template <class T>
OneValue<const T> one_value(const T* scalar) {
  return {scalar};
}
inline None one_value(None) { return none; }

/// alpha and shift are pointers, or shift is none. Layer names the curve: see Dyt, Derf.
template <class Layer, class Device, class Alpha, class Shift, class X, class Weight, class Bias, class Y, class Saved,
          class Options>
void pointwise_norm(const char* function, const Device& device, const Alpha& alpha, const Shift& shift, const X& x,
                    const Weight& weight, const Bias& bias, Y& y, Saved& saved, const Options& options) {
  require_device<Device>();
  using T = scalar_t<const X>;
  RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, options.axis);
  const auto w = arguments.parameter("weight", weight);
  const auto b = arguments.parameter("bias", bias);
  const auto out = arguments.output("y", y);
  const RowGrid grid = arguments.grid();
  if constexpr (!is_none_v<Saved>)
    saved.begin({grid.rows(), grid.length, scalar_name<T>(), options.axis, false, !is_none_v<Weight>,
                 static_cast<const void*>(out.data) == rows.data});
  using A = accumulator_t<T>;
  if constexpr (StreamDevice<Device>) {
    row_pass(device, RowPass{LoadedForward<A, Layer>{}, grid, std::tuple(rows, one_value(alpha), one_value(shift)),
                             std::tuple(w, b), std::tuple(out)});
  } else {
    const auto curve = host_curve<Layer, A>(alpha, shift);
    row_pass(device, RowPass{PointwiseForward<A, curve_of<Layer, A>>{curve}, grid, std::tuple(rows), std::tuple(w, b),
                             std::tuple(out)});
  }
}

/// alpha, dalpha, shift and dshift are pointers or none, as scalar_parameter gives them.
template <class Layer, class Device, class Alpha, class Shift, class Dy, class X, class Weight, class Saved, class Dx,
          class Dalpha, class Dshift, class Dweight, class Dbias>
void pointwise_norm_backward(const char* function, const Device& device, const Alpha& alpha, const Shift& shift,
                             const Dy& dy, const X& x, const Weight& weight, Saved& saved, Dx& dx, const Dalpha& dalpha,
                             const Dshift& dshift, Dweight& dweight, Dbias& dbias, GradientMode mode) {
  require_device<Device>();
  static_assert(!is_none_v<Weight> || is_none_v<Dweight>, "evenkeel: there is no weight that dweight could belong to");
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  static_assert(std::is_same_v<A, typename Saved::Scalar>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  using Math = PointwiseBackward<A, curve_of<Layer, A>, !is_none_v<Dweight>, !is_none_v<Dbias>>;
  saved.check_filled(function);
  RowArguments arguments(function);
  const auto x_rows = arguments.reference("x", x, saved.call.axis);
  const RowGrid grid = arguments.grid();
  const Index rows = grid.rows();
  saved.check(function, "x", rows, grid.length, scalar_name<T>(), !is_none_v<Weight>);
  const auto dy_rows = arguments.input("dy", dy);
  const auto w = arguments.parameter("weight", weight);
  const auto dw = arguments.parameter("dweight", dweight);
  const auto db = arguments.parameter("dbias", dbias);
  const auto dx_rows = arguments.output("dx", dx);
  saved.scratch.ensure(feature_scratch<A, Math::feature_sums>(device, rows, grid.length));
  A* const scratch = saved.scratch.data();
  A* const shares = saved.statistics.data();
  const FeatureParts sums = [&] {
    if constexpr (StreamDevice<Device>) {
      using Loaded = LoadedBackward<A, Layer, !is_none_v<Dweight>, !is_none_v<Dbias>>;
      return row_pass(device,
                      RowPass{Loaded{}, grid, std::tuple(dy_rows, x_rows, one_value(alpha), one_value(shift)),
                              std::tuple(w), std::tuple(dx_rows), none, shares},
                      scratch);
    } else {
      return row_pass(device,
                      RowPass{Math{host_curve<Layer, A>(alpha, shift)}, grid, std::tuple(dy_rows, x_rows),
                              std::tuple(w), std::tuple(dx_rows), none, shares},
                      scratch);
    }
  }();
  const A* const read_shares = shares;
  put_total(device, read_shares, rows, mode, dalpha);
  if constexpr (!is_none_v<Dshift>) put_total(device, read_shares + rows, rows, mode, dshift);
  put_gradients(device, scratch, sums, grid.length, mode, dw, db);
}

}  // namespace EVENKEEL_ISA
}  // namespace detail

inline namespace EVENKEEL_ISA {

/// DyT or Derf with its parameters and their gradients. T is the scalar of the parameters; the data may have any scalar
/// of the same accumulator type. Traits names the curve: see Dyt, Derf.
template <class T, class Traits, class Storage = HostStorage>
class PointwiseLayer {
 public:
  using Scalar = T;
  using Options = typename Traits::Options;
  using Saved = typename Traits::template Saved<accumulator_t<T>, Storage>;

  /// `features` is the length of the axes that weight and bias run along. Throws ShapeError if it is below 1.
  explicit PointwiseLayer(Index features, const Options& options = {}, double alpha_start = 0.5)
      : weight("weight", checked(features), false), bias("bias", features, false), options_(options) {
    alpha.fill(static_cast<T>(alpha_start));
    weight.fill(T(1));
  }

  /// y may be x, then no backward is possible.
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    detail::pointwise_norm<Traits>(Traits::forward, device, alpha.value(), shift_value(), x, map(weight.value()),
                                   map(bias.value()), y, saved, options_);
  }

  /// dx is written, the gradients of the parameters are accumulated. x is the forward's.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx, GradientMode mode = GradientMode::accumulate) {
    auto dw = map(weight.gradient()), db = map(bias.gradient());
    const auto run = [&](const auto& dshift) {
      detail::pointwise_norm_backward<Traits>(Traits::backward, device, alpha.value(), shift_value(), dy, x,
                                              map(weight.value()), saved, dx, alpha.gradient(), dshift, dw, db, mode);
    };
    if constexpr (Traits::shifted)
      run(shift.gradient());
    else
      run(none);
  }

  /// Calls f(ParameterRef<T>) for alpha, shift where there is one, weight and bias.
  template <class F>
  void for_each_parameter(F&& f) {
    f(alpha.ref());
    if (Traits::shifted) f(shift.ref());
    f(weight.ref());
    f(bias.ref());
  }

  Index features() const { return weight.size(); }
  const Options& options() const { return options_; }

  Parameter<T, Storage> alpha{"alpha", 1, false};
  Parameter<T, Storage> shift{"shift", Traits::shifted ? 1 : 0, false};
  Parameter<T, Storage> weight;  // (features)
  Parameter<T, Storage> bias;    // (features)
  Saved saved;

 private:
  static Index checked(Index features) {
    if (features < 1)
      detail::throw_shape_error(Traits::forward, "the layer has ", features, " features, expected 1 or more");
    return features;
  }
  auto map(T* data) const { return Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(data, features()); }
  auto shift_value() {
    if constexpr (Traits::shifted)
      return shift.value();
    else
      return none;
  }

  Options options_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
