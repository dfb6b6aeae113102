/// Any norm of a residual sum: sum = x + residual, y = norm(sum), in one pass. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/vocabulary.hpp"
#include "evenkeel/detail/wrapped_math.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// Wraps the math of a norm with one input and one output. The norm sees the sum as it is stored, in T: so the
/// backward, which reads the stored sum, belongs to the same numbers.
template <class Norm, class T>
struct AddMath : WrappedMath<Norm> {
  static constexpr int outputs = 2;
  using WrappedMath<Norm>::norm;

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
  static double magnitude(double x, double residual, const P&... parameters) {
    return Norm::magnitude(stored(x, residual), parameters...);
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    return AddMath<std::remove_const_t<decltype(wide)>, T>{{wide}};
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
  EVENKEEL_HD static V stored(const V& x, const V& residual) {
    const V sum = x + residual;
    return round_to<T>(sum);
  }
};

}  // namespace evenkeel::detail
