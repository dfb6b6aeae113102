/// Any norm of a residual sum: sum = x + residual, y = norm(sum), in one pass. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// Wraps the math of a norm with one input and one output. The norm sees the sum as it is stored, in T: so the
/// backward, which reads the stored sum, belongs to the same numbers.
template <class Norm, class T>
struct AddMath {
  using Scalar = typename Norm::Scalar;
  static constexpr int sums = Norm::sums, feature_sums = Norm::feature_sums, outputs = 2;
  template <class V>
  using Known = typename Norm::template Known<V>;
  template <class V>
  using Start = typename Norm::template Start<V>;
  template <class V>
  using Row = typename Norm::template Row<V>;

  static constexpr bool averages_shift = detail::averages_shift<Norm>;

  Norm norm;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S& x, const S& residual) const {
    return norm.start(known, stored(x, residual));
  }
  EVENKEEL_MATH template <class V, class S, class... P>
  EVENKEEL_HD void accumulate(Values<V, sums>& s, Values<V, feature_sums>& terms, const Start<S>& start, const V& x,
                              const V& residual, const P&... parameters) const {
    norm.accumulate(s, terms, start, stored(x, residual), parameters...);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, sums>& s, const Start<S>& start) const {
    return norm.finish(s, start);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool ready(const Start<S>& start) const requires requires(const Norm& n) {
    n.ready(start);
  }
  { return norm.ready(start); }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool settled(const Start<S>& start, const Row<S>& row) const requires requires(const Norm& n) {
    n.settled(start, row);
  }
  { return norm.settled(start, row); }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> restart(const Start<S>& start, const Row<S>& row) const requires requires(const Norm& n) {
    n.restart(start, row);
  }
  { return norm.restart(start, row); }
  static double magnitude(double x, double residual) { return Norm::magnitude(stored(x, residual)); }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    return AddMath<std::remove_const_t<decltype(wide)>, T>{wide};
  }
  Known<double> rescaled(const Known<double>& known) const { return norm.rescaled(known); }
  auto unscaled(const Row<double>& row) const { return norm.unscaled(row); }
  EVENKEEL_MATH template <class V, class S, class... P>
  EVENKEEL_HD void write(Values<V, 2>& out, const Row<S>& row, const V& x, const V& residual,
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
