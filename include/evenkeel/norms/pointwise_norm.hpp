/// What DyT and Derf have in common, the layers without statistics that stand where a norm stood: y = weight * c(u) +
/// bias, u = alpha * x + shift, with a curve c and learned scalars alpha and, where the curve has one, shift.
///
///     h = dy * weight,  dx = h * c'(u) * alpha,  dalpha = sum of h * x * c'(u),  dshift = sum of h * c'(u)
///     dweight = sum over rows of dy * c(u),  dbias = sum over rows of dy
#pragma once

#include "evenkeel/detail/curve_math.hpp"
#include "evenkeel/norms/row_norm.hpp"

#include <tuple>
#include <type_traits>
#include <utility>

namespace evenkeel {
namespace detail {

/// u = alpha * x.
template <class A, class C>
struct ScaledCurve {
  static constexpr int scalars = 1;
  A alpha;
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD V value(const V& x) const {
    return C::value(V(x * alpha));
  }
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD V slope(const V& x) const {
    return C::slope(V(x * alpha));
  }
};
/// u = alpha * x + shift.
template <class A, class C>
struct ShiftedCurve {
  static constexpr int scalars = 2;
  A alpha, shift;
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD V value(const V& x) const {
    return C::value(V(x * alpha + splat<V>(shift)));
  }
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD V slope(const V& x) const {
    return C::slope(V(x * alpha + splat<V>(shift)));
  }
};

template <class A, class Curve>
struct PointwiseForward {
  using Scalar = A;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {};

  Curve curve;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void accumulate(Values<V, 0>&, Values<V, 0>&, const Start<S>&, const V&, const W&, const B&) const {}
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 0>&, const Start<S>&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>&, const V& x, const W& weight, const B& bias) const {
    y[0] = AffineMath<false, None>::apply(curve.value(x), weight, bias);
  }
};

/// The rows' shares of the gradients of the scalars.
template <class V>
struct OneShare {
  V dalpha;
};
template <class V>
struct TwoShares {
  V dalpha, dshift;
};

/// Inputs dy, x; parameter weight; output dx. Keeps each row's share of dalpha and dshift.
template <class A, class Curve, bool Dweight, bool Dbias>
struct PointwiseBackward {
  using Scalar = A;
  using Terms = ParameterTerms<Dweight, Dbias>;
  static constexpr int sums = Curve::scalars, feature_sums = Terms::count, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  using Row = std::conditional_t<sums == 1, OneShare<V>, TwoShares<V>>;

  Curve curve;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&, const S&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S, class W>
  EVENKEEL_HD void accumulate(Values<V, sums>& s, Values<V, Terms::count>& terms, const Start<S>&, const V& dy,
                              const V& x, const W& weight) const {
    const V du = AffineMath<false, None>::pull(dy, weight) * curve.slope(x);
    s[0] += du * x;
    if constexpr (sums == 2) s[1] += du;
    if constexpr (Dweight)
      Terms::set(terms, dy, curve.value(x));
    else
      Terms::set(terms, dy, dy);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, sums>& s, const Start<S>&) const {
    if constexpr (sums == 1)
      return {s[0]};
    else
      return {s[0], s[1]};
  }
  EVENKEEL_MATH template <class V, class R, class W>  // Row<S> is chosen, not deduced
  EVENKEEL_HD void write(Values<V, 1>& dx, const R&, const V& dy, const V& x, const W& weight) const {
    const V du = AffineMath<false, None>::pull(dy, weight) * curve.slope(x);
    dx[0] = du * curve.alpha;
  }
};

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

/// Adds a sum to a scalar's gradient, or writes it there.
template <class T>
void put_scalar_gradient(T* gradient, double sum, GradientMode mode) {
  *gradient = static_cast<T>(mode == GradientMode::overwrite ? sum : static_cast<double>(*gradient) + sum);
}
inline void put_scalar_gradient(None, double, GradientMode) {}

template <class Device, class Curve, class X, class Weight, class Bias, class Y, class Saved, class Options>
void pointwise_norm(const char* function, const Device& device, const Curve& curve, const X& x, const Weight& weight,
                    const Bias& bias, Y& y, Saved& saved, const Options& options) {
  require_cpu_device<Device>();
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
  row_pass(device, RowPass{PointwiseForward<accumulator_t<T>, Curve>{curve}, grid, std::tuple(rows), std::tuple(w, b),
                           std::tuple(out)});
}

/// dalpha and dshift are pointers or none, as scalar_parameter gives them.
template <class Device, class Curve, class Dy, class X, class Weight, class Saved, class Dx, class Dalpha, class Dshift,
          class Dweight, class Dbias>
void pointwise_norm_backward(const char* function, const Device& device, const Curve& curve, const Dy& dy, const X& x,
                             const Weight& weight, Saved& saved, Dx& dx, const Dalpha& dalpha, const Dshift& dshift,
                             Dweight& dweight, Dbias& dbias, GradientMode mode) {
  require_cpu_device<Device>();
  static_assert(!is_none_v<Weight> || is_none_v<Dweight>, "evenkeel: there is no weight that dweight could belong to");
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  static_assert(std::is_same_v<A, typename Saved::Scalar>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  using Math = PointwiseBackward<A, Curve, !is_none_v<Dweight>, !is_none_v<Dbias>>;
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
  saved.scratch.reserve(feature_scratch<A, Math::feature_sums>(rows, grid.length));
  A* const scratch = saved.scratch.data();
  A* const shares = saved.statistics.data();
  row_pass(device,
           RowPass{Math{curve}, grid, std::tuple(dy_rows, x_rows), std::tuple(w), std::tuple(dx_rows), none, shares},
           scratch);
  const auto total = [&](int k) {
    double sum = 0;
    for (Index r = 0; r < rows; ++r) sum += static_cast<double>(shares[k * rows + r]);
    return sum;
  };
  put_scalar_gradient(dalpha, total(0), mode);
  if constexpr (!is_none_v<Dshift>) put_scalar_gradient(dshift, total(1), mode);
  put_gradient(dw, scratch, grid.length, mode);
  if constexpr (!is_none_v<Dbias>)
    put_gradient(db, scratch + (Math::feature_sums - 1) * FeatureSums<A, 1>::pitch_of(grid.length), grid.length, mode);
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
    detail::pointwise_norm(Traits::forward, device, curve(), x, map(weight.value()), map(bias.value()), y, saved,
                           options_);
  }

  /// dx is written, the gradients of the parameters are accumulated. x is the forward's.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx, GradientMode mode = GradientMode::accumulate) {
    auto dw = map(weight.gradient()), db = map(bias.gradient());
    const auto run = [&](const auto& dshift) {
      detail::pointwise_norm_backward(Traits::backward, device, curve(), dy, x, map(weight.value()), saved, dx,
                                      alpha.gradient(), dshift, dw, db, mode);
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
  auto curve() const {
    using A = accumulator_t<T>;
    return Traits::template curve<A>(static_cast<A>(*alpha.value()),
                                     Traits::shifted ? static_cast<A>(*shift.value()) : A(0));
  }

  Options options_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
