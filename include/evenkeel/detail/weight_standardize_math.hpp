/// The math of weight standardization: a mean pass, a pass over what is left of it, and the backward's. No Eigen, no
/// CUDA header.
#pragma once

#include "evenkeel/detail/standardize_math.hpp"
#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"
#include "evenkeel/detail/weight_math.hpp"

#include <cmath>
#include <cstdint>

namespace evenkeel::detail {

/// How the denominator is made of the variance.
enum class Denominator { plain, largest, added };

/// The mean of scale * w. The shift, the first value, makes a constant unit exactly constant.
struct UnitMeanMath {
  using Scalar = double;
  static constexpr int sums = 2, feature_sums = 0, outputs = 0;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {
    V scale, shift;
  };
  template <class V>
  struct Row {
    V scale, mean, squares;
  };

  double inv_n, eps;

  EVENKEEL_MATH template <class S, class... Rest>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S& first, const Rest&...) const {
    return {splat<S>(1), first};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 2>& s, Values<V, 0>&, const Start<S>& start, const V& w) const {
    const V scaled = w * start.scale;
    s[0] += scaled - start.shift;
    s[1] += scaled * scaled;
  }
  EVENKEEL_HD Row<double> finish(const Values<double, 2>& s, const Start<double>& start) const {
    return {start.scale, start.shift + s[0] * inv_n, s[1]};
  }
  /// Beside an eps of the usual size tiny squares are nothing, and eps has no room to be scaled up with them.
  EVENKEEL_HD Start<double> restart(const Start<double>& start, const Row<double>& row) const {
    const double scale = scale_of_squares(row.squares);
    if (scale > 1 && eps > 0x1p-700) return start;
    return {scale, start.shift * scale};
  }
};

/// The statistics of scale * w; the mean is mean + rest.
template <class V>
struct StandardizedUnit {
  V scale, mean, rest, rstd;
  EVENKEEL_MATH template <class X>
  EVENKEEL_HD X xhat(const X& w) const {
    const X scaled = w * scale;
    return StandardizeRow<V>{mean, rest, rstd}.xhat(scaled);
  }
};

struct UnitSpreadMath {
  using Scalar = double;
  static constexpr int sums = 2, feature_sums = 0, outputs = 0;
  template <class V>
  struct Known {
    V scale, mean;
  };
  template <class V>
  using Start = Known<V>;
  template <class V>
  struct Row {
    V rest, rstd, slope;
  };

  Denominator denominator;
  double n, eps;

  EVENKEEL_MATH template <class S, class... Rest>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&, const Rest&...) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 2>& s, Values<V, 0>&, const Start<S>& start, const V& w) const {
    const V scaled = w * start.scale;
    const V centred = scaled - start.mean;
    s[0] += centred;
    s[1] += centred * centred;
  }
  EVENKEEL_HD Row<double> finish(const Values<double, 2>& s, const Start<double>& start) const {
    const double rest = s[0] / n, M2 = max(s[1] - rest * s[0], 0.0);
    const double least = denominator == Denominator::added ? n * eps : eps;
    const double scaled_least = least * start.scale * start.scale;
    double square = denominator == Denominator::plain ? M2 / n : M2, slope = denominator == Denominator::plain ? 1 : n;
    if (denominator != Denominator::largest) {
      square += scaled_least;
    } else if (square <= scaled_least) {
      square = scaled_least;
      slope = 0;
    }
    // A constant unit of huge values: eps, scaled down, is 0, and what it was before decides.
    if (square == 0 && least > 0) return {rest, 1 / (std::sqrt(least) * start.scale), slope};
    return {rest, inverse_root(square), slope};
  }
};

/// What the spread pass left, (rest | rstd | slope, units) from field 4 on, as the write pass knows it: fields 2 and 3.
struct SpreadToKnown {
  double* values;
  std::int64_t units;
  EVENKEEL_HD void operator()(std::int64_t u) const {
    values[2 * units + u] = values[4 * units + u];
    values[3 * units + u] = values[5 * units + u];
  }
};

/// The sums (dy | dy_xhat, units) from field 7 on as the means (mean_dy | pull, units), fields 4 and 5; slope is field 6.
struct StandardizedMeans {
  double* values;
  std::int64_t units;
  double n;
  EVENKEEL_HD void operator()(std::int64_t u) const {
    values[4 * units + u] = values[7 * units + u] / n;
    values[5 * units + u] = values[6 * units + u] * (values[8 * units + u] / n);
  }
};

struct StandardizedWrite {
  using Scalar = double;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  using Row = StandardizedUnit<V>;

  EVENKEEL_MATH template <class V, class S, class G>
  EVENKEEL_HD void write(Values<V, 1>& w_hat, const Row<S>& row, const V& w, const G& gain) const {
    w_hat[0] = AffineMath<false, None>::apply(row.xhat(w), gain, None{});
  }
};

struct StandardizedGradientSums {
  using Scalar = double;
  static constexpr int sums = 2, feature_sums = 0, outputs = 0;
  template <class V>
  using Known = StandardizedUnit<V>;
  template <class V>
  using Start = StandardizedUnit<V>;
  template <class V>
  struct Row {
    V dy, dy_xhat;
  };

  EVENKEEL_MATH template <class S, class... Rest>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&, const Rest&...) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 2>& s, Values<V, 0>&, const Start<S>& start, const V& dy, const V& w) const {
    s[0] += dy;
    s[1] += dy * start.xhat(w);
  }
  EVENKEEL_HD Row<double> finish(const Values<double, 2>& s, const Start<double>&) const { return {s[0], s[1]}; }
};

struct StandardizedGradientWrite {
  using Scalar = double;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {
    V scale, mean, rest, rstd, mean_dy, pull;
  };

  EVENKEEL_MATH template <class V, class S, class G>
  EVENKEEL_HD void write(Values<V, 1>& dw, const Row<S>& row, const V& dy, const V& w, const G& gain) const {
    const V xhat = StandardizedUnit<S>{row.scale, row.mean, row.rest, row.rstd}.xhat(w);
    const V centred = dy - row.mean_dy;
    const V tangent = centred - xhat * row.pull;
    const V scaled = tangent * row.rstd;
    dw[0] = AffineMath<false, None>::pull(V(scaled * row.scale), gain);
  }
};

}  // namespace evenkeel::detail
