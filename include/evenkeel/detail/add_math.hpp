/// Any norm of a residual sum: sum = x + residual, y = norm(sum), in one pass. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"

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
  EVENKEEL_HD Start<S> restart(const Start<S>& start, const Row<S>& row) const requires requires(const Norm& n) {
    n.restart(start, row);
  }
  { return norm.restart(start, row); }
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
