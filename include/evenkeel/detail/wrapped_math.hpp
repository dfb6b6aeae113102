/// What maths that change the inputs or outputs of another math, and not its statistics, have in common. No Eigen, no
/// CUDA header.
#pragma once

#include "evenkeel/detail/values.hpp"

namespace evenkeel::detail {

/// Passes on whatever Norm offers about its rows, its doubts about them included. What derives from it adds start,
/// accumulate, write, magnitude and careful.
template <class Norm>
struct WrappedMath {
  using Scalar = typename Norm::Scalar;
  static constexpr int sums = Norm::sums, feature_sums = Norm::feature_sums, outputs = Norm::outputs;
  template <class V>
  using Known = typename Norm::template Known<V>;
  template <class V>
  using Start = typename Norm::template Start<V>;
  template <class V>
  using Row = typename Norm::template Row<V>;

  static constexpr bool averages_shift = detail::averages_shift<Norm>;

  Norm norm;

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
  Known<double> rescaled(const Known<double>& known) const { return norm.rescaled(known); }
  auto unscaled(const Row<double>& row) const { return norm.unscaled(row); }
};

}  // namespace evenkeel::detail
