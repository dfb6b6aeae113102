/// The math of spectral norms: products of a matrix and a vector, and the passes over the weight. No Eigen, no CUDA
/// header.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"

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
  struct Row {};

  double sigma, gain;

  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& w_hat, const Row<S>&, const V& w, None) const {
    const V normalized = w / sigma;
    w_hat[0] = normalized * gain;
  }
};

/// sum(dw_hat * w / sigma).
struct SpectralGradientSums {
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

  double sigma;

  EVENKEEL_MATH template <class S, class... Rest>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&, const Rest&...) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, 0>&, const Start<S>&, const V& dw_hat, const V& w) const {
    const V normalized = w / sigma;
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
    V pull;
  };

  double sigma, gain;

  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& dw, const Row<S>& row, const V& dw_hat, const V& v, None) const {
    const V tangent = dw_hat - v * row.pull;
    const V scaled = tangent / sigma;
    dw[0] = scaled * gain;
  }
};

}  // namespace evenkeel::detail
