/// Any norm of a residual sum, sum = x + factor * residual, y = norm(sum), and any norm that is added to a residual
/// stream, y = residual + norm(x), each in one pass. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/vocabulary.hpp"
#include "evenkeel/detail/wrapped_math.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// Wraps the math of a norm with one input and one output. The norm sees the sum as it is stored, in T: so the
/// backward, which reads the stored sum, belongs to the same numbers. Factor is a number, or None where it is 1.
template <class Norm, class T, class Factor = None>
struct AddMath : WrappedMath<Norm> {
  static constexpr int outputs = 2;
  using WrappedMath<Norm>::norm;

  Factor factor;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& x, const S& residual) const {
    return norm.start(known, stored(x, residual));
  }
  EVENKEEL_MATH template <class V, class Start, class... P>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, Norm::feature_sums>& terms, const Start& start,
                              const V& x, const V& residual, const P&... parameters) const {
    norm.accumulate(s, terms, start, stored(x, residual), parameters...);
  }
  template <class... P>
  double magnitude(double x, double residual, const P&... parameters) const {
    return Norm::magnitude(stored(x, residual), parameters...);
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    using Wide = AddMath<std::remove_const_t<decltype(wide)>, T, std::conditional_t<is_none_v<Factor>, None, double>>;
    return Wide{{wide}, factor};
  }
  EVENKEEL_MATH template <class V, class Row, class... P>
  EVENKEEL_HD void write(Values<V, 2>& out, const Row& row, const V& x, const V& residual,
                         const P&... parameters) const {
    out[0] = stored(x, residual);
    Values<V, 1> y;
    norm.write(y, row, out[0], parameters...);
    out[1] = y[0];
  }

 private:
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD V stored(const V& x, const V& residual) const {
    const V sum = x + times(residual, factor);
    return round_to<T>(sum);
  }
};

/// Wraps the math of a norm with one input and one output: inputs x, residual; y = residual + norm(x).
template <class Norm>
struct NormAddMath : WrappedMath<Norm> {
  using WrappedMath<Norm>::norm;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& x, const S&) const {
    return norm.start(known, x);
  }
  EVENKEEL_MATH template <class V, class Start, class... P>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, Norm::feature_sums>& terms, const Start& start,
                              const V& x, const V&, const P&... parameters) const {
    norm.accumulate(s, terms, start, x, parameters...);
  }
  template <class... P>
  double magnitude(double x, double, const P&... parameters) const {
    return norm.magnitude(x, parameters...);
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    return NormAddMath<std::remove_const_t<decltype(wide)>>{{wide}};
  }
  EVENKEEL_MATH template <class V, class Row, class... P>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row& row, const V& x, const V& residual, const P&... parameters) const {
    norm.write(y, row, x, parameters...);
    y[0] = y[0] + residual;
  }
};

}  // namespace evenkeel::detail
