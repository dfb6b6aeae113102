/// The math of spectral norms: products of a matrix and a vector, and the passes over the weight. No Eigen, no CUDA
/// header.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"
#include "evenkeel/detail/weight_math.hpp"

#include <cstdint>
#include <limits>

namespace evenkeel::detail {

/// sum(w * x), x the same for every channel.
struct ProductMath {
  using Scalar = double;
  static constexpr int sums = 1, feature_sums = 0, outputs = 0;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {
    V sum;
  };

  EVENKEEL_MATH template <class S, class... Rest>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&, const Rest&...) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, 0>&, const Start<S>&, const V& w, const V& x) const {
    s[0] += w * x;
  }
  EVENKEEL_HD Row<double> finish(const Values<double, 1>& s, const Start<double>&) const { return {s[0]}; }
};

/// w / sigma, times gain. Not times 1/sigma, which is infinite for the least of doubles.
struct SpectralWrite {
  using Scalar = double;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {
    V sigma, gain;
  };

  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& w_hat, const Row<S>& row, const V& w, None) const {
    const V normalized = w / row.sigma;
    w_hat[0] = normalized * row.gain;
  }
};

/// sum(dw_hat * w / sigma).
struct SpectralGradientSums {
  using Scalar = double;
  static constexpr int sums = 1, feature_sums = 0, outputs = 0;
  template <class V>
  struct Known {
    V sigma;
  };
  template <class V>
  using Start = Known<V>;
  template <class V>
  struct Row {
    V sum;
  };

  EVENKEEL_MATH template <class S, class... Rest>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&, const Rest&...) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, 0>&, const Start<S>& start, const V& dw_hat,
                              const V& w) const {
    const V normalized = w / start.sigma;
    s[0] += dw_hat * normalized;
  }
  EVENKEEL_HD Row<double> finish(const Values<double, 1>& s, const Start<double>&) const { return {s[0]}; }
};

/// gain * (dw_hat - pull * v) / sigma, pull = sum(dw_hat * w / sigma) * u for each row.
struct SpectralGradientWrite {
  using Scalar = double;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {
    V pull, sigma, gain;
  };

  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& dw, const Row<S>& row, const V& dw_hat, const V& v, None) const {
    const V tangent = dw_hat - v * row.pull;
    const V scaled = tangent / row.sigma;
    dw[0] = scaled * row.gain;
  }
};

/// to = a * b.
struct ProductOfValues {
  const double *a, *b;
  double* to;
  EVENKEEL_HD void operator()(std::int64_t i) const { to[i] = a[i] * b[i]; }
};

/// pull = total * u for each row.
struct SpectralPull {
  const double *total, *u;
  double* pull;
  EVENKEEL_HD void operator()(std::int64_t row) const { pull[row] = *total * u[row]; }
};

/// What the passes divide by and multiply with, (sigma | gain, rows): gamma is a pointer or none. Where sigma is zero all
/// is.
template <class G>
struct SpectralFactors {
  const double* sigma;
  G gamma;
  double* factors;
  std::int64_t rows;
  EVENKEEL_MATH EVENKEEL_HD void operator()(std::int64_t row) const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    factors[row] = *sigma == 0 ? infinity : *sigma;
    if constexpr (is_none_v<G>)
      factors[rows + row] = 1;
    else
      factors[rows + row] = widened(*gamma);
  }
};

}  // namespace evenkeel::detail
