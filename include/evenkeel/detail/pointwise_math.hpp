/// The math of layers without statistics: y = weight * c(u) + bias, u = alpha * x + shift. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/affine_math.hpp"
#include "evenkeel/detail/curve_math.hpp"
#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"

#include <type_traits>

namespace evenkeel::detail {

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

/// The curve of scalars that a kernel has loaded. Layer names the curve: see Dyt, Derf.
EVENKEEL_MATH template <class Layer, class A, class Shift>
EVENKEEL_HD auto loaded_curve(const A& alpha, const Shift& shift) {
  if constexpr (is_none_v<Shift>)
    return Layer::template curve<A>(alpha, A(0));
  else
    return Layer::template curve<A>(alpha, shift);
}
template <class Layer, class A>
using curve_of = decltype(Layer::template curve<A>(A(), A()));

/// PointwiseForward whose scalars lie in the device's memory: inputs x, alpha, shift. A host that read them would have
/// to wait for the device.
template <class A, class Layer>
struct LoadedForward : PointwiseForward<A, curve_of<Layer, A>> {
  using Base = PointwiseForward<A, curve_of<Layer, A>>;
  template <class Shift>
  EVENKEEL_HD typename Base::template Start<A> start(const typename Base::template Known<A>&, const A&, const A&,
                                                     const Shift&) const {
    return {};
  }
  template <class Start, class... Arguments>
  EVENKEEL_HD void accumulate(Values<A, 0>&, Values<A, 0>&, const Start&, const Arguments&...) const {}
  template <class Shift, class W, class B>
  EVENKEEL_HD void write(Values<A, 1>& y, const typename Base::template Row<A>& row, const A& x, const A& alpha,
                         const Shift& shift, const W& weight, const B& bias) const {
    Base{loaded_curve<Layer>(alpha, shift)}.write(y, row, x, weight, bias);
  }
};

/// The same of PointwiseBackward: inputs dy, x, alpha, shift.
template <class A, class Layer, bool Dweight, bool Dbias>
struct LoadedBackward : PointwiseBackward<A, curve_of<Layer, A>, Dweight, Dbias> {
  using Base = PointwiseBackward<A, curve_of<Layer, A>, Dweight, Dbias>;

  template <class Shift>
  EVENKEEL_HD typename Base::template Start<A> start(const typename Base::template Known<A>&, const A&, const A&,
                                                     const A&, const Shift&) const {
    return {};
  }
  template <class Shift, class W>
  EVENKEEL_HD void accumulate(Values<A, Base::sums>& s, Values<A, Base::feature_sums>& terms,
                              const typename Base::template Start<A>& start, const A& dy, const A& x, const A& alpha,
                              const Shift& shift, const W& weight) const {
    Base{loaded_curve<Layer>(alpha, shift)}.accumulate(s, terms, start, dy, x, weight);
  }
  template <class Shift, class W>
  EVENKEEL_HD void write(Values<A, 1>& dx, const typename Base::template Row<A>& row, const A& dy, const A& x,
                         const A& alpha, const Shift& shift, const W& weight) const {
    Base{loaded_curve<Layer>(alpha, shift)}.write(dx, row, dy, x, weight);
  }
};

}  // namespace evenkeel::detail
