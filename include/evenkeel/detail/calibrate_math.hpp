/// A norm's forward that also leaves ||h * weight|| per row, h = x or x - mean: what TaperNorm is calibrated with. y is
/// the norm's own, bit for bit. No Eigen, no CUDA header.
///
/// The norm is kept, not its square, which would leave the range of float where r(h) does not.
#pragma once

#include "evenkeel/detail/affine_math.hpp"
#include "evenkeel/detail/careful_math.hpp"
#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// Of RmsForward: one sum more, that of (x * weight)^2.
template <class Norm>
struct RmsCalibration : Norm {
  static constexpr int sums = 2;
  template <class V>
  using Start = typename Norm::template Start<V>;
  template <class V>
  using NormRow = typename Norm::template Row<V>;
  template <class V>
  struct Row {
    V rstd, weighted_norm;
  };

  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void accumulate(Values<V, 2>& s, Values<V, 0>& terms, const Start<S>& start, const V& x, const W& weight,
                              const B& bias) const {
    Values<V, 1> of_norm;
    of_norm[0] = s[0];
    Norm::accumulate(of_norm, terms, start, x, weight, bias);
    s[0] = of_norm[0];
    const V scaled = AffineMath<false, None>::pull(x, weight);
    s[1] += scaled * scaled;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 2>& s, const Start<S>& start) const {
    Values<S, 1> of_norm;
    of_norm[0] = s[0];
    return {Norm::finish(of_norm, start).rstd, sqrt(s[1])};
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool settled(const Start<S>& start, const Row<S>& row) const {
    return Norm::settled(start, NormRow<S>{row.rstd}) && finite(row.weighted_norm);
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = Norm::careful(largest, length);
    using Wide = RmsCalibration<std::remove_const_t<decltype(wide.norm)>>;
    return CarefulForward<Wide>{Wide{wide.norm}, wide.scale};
  }
  Row<double> unscaled(const Row<double>& row, double scale) const {
    return {row.rstd * scale, row.weighted_norm / scale};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>& row, const V& x, const W& weight, const B& bias) const {
    Norm::write(y, NormRow<S>{row.rstd}, x, weight, bias);
  }
};

/// Of StandardizeForward. The mean is known only after the pass, so with e = x - shift and mean = shift + delta
///     sum ((x - mean) * weight)^2 = sum (e * weight)^2 - 2 delta * sum e * weight^2 + delta^2 * sum weight^2
/// which loses little, since |delta| is below the row's standard deviation or the row starts over from its mean.
template <class Norm>
struct StandardizeCalibration : Norm {
  static constexpr int sums = 5;
  template <class V>
  using Start = typename Norm::template Start<V>;
  template <class V>
  using NormRow = typename Norm::template Row<V>;
  template <class V>
  struct Row {
    V mean, rest, rstd, weighted_norm;
  };

  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void accumulate(Values<V, 5>& s, Values<V, 0>& terms, const Start<S>& start, const V& x, const W& weight,
                              const B& bias) const {
    Values<V, 2> of_norm;
    of_norm[0] = s[0];
    of_norm[1] = s[1];
    Norm::accumulate(of_norm, terms, start, x, weight, bias);
    s[0] = of_norm[0];
    s[1] = of_norm[1];
    const V shifted = x - start.shift;
    const V scaled = AffineMath<false, None>::pull(shifted, weight);
    const V ones = splat<V>(1);
    const V factor = AffineMath<false, None>::pull(ones, weight);
    s[2] += scaled * scaled;
    s[3] += scaled * factor;
    s[4] += factor * factor;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 5>& s, const Start<S>& start) const {
    Values<S, 2> of_norm;
    of_norm[0] = s[0];
    of_norm[1] = s[1];
    const NormRow<S> row = Norm::finish(of_norm, start);
    const S delta = s[0] * this->inv_n;
    const S twice_first = s[3] + s[3], weights = delta * s[4];
    const S square = s[2] - delta * S(twice_first - weights);
    return {row.mean, row.rest, row.rstd, sqrt(max(square, splat<S>(0)))};
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool settled(const Start<S>& start, const Row<S>& row) const {
    return Norm::settled(start, norm_row(row)) && finite(row.weighted_norm);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> restart(const Start<S>& start, const Row<S>& row) const {
    return Norm::restart(start, norm_row(row));
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = Norm::careful(largest, length);
    using Wide = StandardizeCalibration<std::remove_const_t<decltype(wide.norm)>>;
    return CarefulForward<Wide>{Wide{wide.norm}, wide.scale};
  }
  Row<double> unscaled(const Row<double>& row, double scale) const {
    const NormRow<double> of_norm = Norm::unscaled(norm_row(row), scale);
    return {of_norm.mean, of_norm.rest, of_norm.rstd, row.weighted_norm / scale};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>& row, const V& x, const W& weight, const B& bias) const {
    Norm::write(y, norm_row(row), x, weight, bias);
  }

 private:
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static NormRow<S> norm_row(const Row<S>& row) {
    return {row.mean, row.rest, row.rstd};
  }
};

}  // namespace evenkeel::detail
