// The norms as their formulas read, in long double over plain row-major vectors. This header includes nothing of
// evenkeel: a mistake in the library cannot hide in its own witness.
//
// Beside every result stands its magnitude: what the terms of the formula add up to without cancellation. Rounding
// errors are proportional to that, not to the result, so tolerance() is fed with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace reference {

using Values = std::vector<double>;
using Real = long double;

// Any tensor in contiguous memory, seen from the normalized axes: element (o, i, k) lies at (o * length + i) * inner +
// k.
struct Slab {
  std::size_t outer = 1, length = 1, inner = 1;
  std::size_t rows() const { return outer * inner; }
  std::size_t size() const { return outer * length * inner; }
  std::size_t at(std::size_t row, std::size_t i) const { return (row / inner * length + i) * inner + row % inner; }
};

// Axes first..last of `extents`, the extents listed from the slowest to the fastest in memory.
inline Slab slab(const std::vector<std::size_t>& extents, std::size_t first, std::size_t last) {
  Slab s;
  for (std::size_t a = 0; a < extents.size(); ++a) {
    (a < first ? s.outer : a <= last ? s.length : s.inner) *= extents[a];
  }
  return s;
}

struct Options {
  double eps = 0;
  bool unit_offset = false;
  // Rounds xhat before the weight is applied; empty means everything is rounded once, at the end.
  std::function<double(double)> round_xhat;
};

struct Forward {
  Values y, xhat;
  Values mean, rstd;  // per row (per channel for BatchNorm)
  Values reach;       // per row: the size of xhat as far as its rounding errors are concerned
  Values y_magnitude;
};

struct Backward {
  Values dx, dweight, dbias;
  Values dx_magnitude, dweight_magnitude, dbias_magnitude;
};

namespace detail {

inline Real gain(const Values& weight, std::size_t i, bool unit_offset) {
  if (weight.empty()) return 1;
  return unit_offset ? 1 + Real(weight[i]) : Real(weight[i]);
}

struct RowStatistics {
  Real mean = 0, rstd = 0;
};

// `value(j)` gives the j-th of `count` numbers.
template <class Value>
RowStatistics statistics(std::size_t count, const Value& value, double eps, bool centred) {
  RowStatistics s;
  if (centred) {
    for (std::size_t j = 0; j < count; ++j) s.mean += value(j);
    s.mean /= Real(count);
  }
  Real square = 0;
  for (std::size_t j = 0; j < count; ++j) square += (value(j) - s.mean) * (value(j) - s.mean);
  const Real denominator = std::sqrt(square / Real(count) + Real(eps));
  s.rstd = denominator > 0 ? 1 / denominator : 0;  // a constant row without eps: xhat = 0 and dx = 0
  return s;
}

// The library sums (x - K) and (x - K)^2 with K one of the row's own elements, then subtracts the squared mean. That
// costs up to 1 + (K - mean)^2/var times the plain error, and the library redoes rows beyond 64.
inline Real amplification(Real xhat_first, bool centred) {
  return centred ? 1 + std::min<Real>(64, xhat_first * xhat_first) : 1;
}

// Elements that share statistics: entry j of group g lies at `index(g, j)` and takes parameter `parameter(g, j)`.
struct Grouping {
  std::size_t groups, count, parameters;
  std::function<std::size_t(std::size_t, std::size_t)> index, parameter;
};

inline Grouping by_row(const Slab& s) {
  return {s.rows(), s.length, s.length, [s](std::size_t g, std::size_t j) { return s.at(g, j); },
          [](std::size_t, std::size_t j) { return j; }};
}

inline Grouping by_channel(const Slab& s) {
  return {s.length, s.rows(), s.length, [s](std::size_t g, std::size_t j) { return s.at(j, g); },
          [](std::size_t g, std::size_t) { return g; }};
}

inline Forward forward(const Grouping& group, const Values& x, const Values& weight, const Values& bias,
                       const Options& options, bool centred) {
  Forward f;
  f.y.resize(x.size());
  f.xhat.resize(x.size());
  f.y_magnitude.resize(x.size());
  for (std::size_t g = 0; g < group.groups; ++g) {
    const auto value = [&](std::size_t j) { return Real(x[group.index(g, j)]); };
    const RowStatistics s = statistics(group.count, value, options.eps, centred);
    Real largest = 0;
    for (std::size_t j = 0; j < group.count; ++j) largest = std::max(largest, std::abs((value(j) - s.mean) * s.rstd));
    const Real reach = largest * amplification((value(0) - s.mean) * s.rstd, centred);
    f.mean.push_back(double(s.mean));
    f.rstd.push_back(double(s.rstd));
    f.reach.push_back(double(reach));
    for (std::size_t j = 0; j < group.count; ++j) {
      const std::size_t at = group.index(g, j), p = group.parameter(g, j);
      Real xhat = (value(j) - s.mean) * s.rstd;
      f.xhat[at] = double(xhat);
      if (options.round_xhat) xhat = options.round_xhat(double(xhat));
      const Real w = gain(weight, p, options.unit_offset), b = bias.empty() ? 0 : Real(bias[p]);
      f.y[at] = double(xhat * w + b);
      f.y_magnitude[at] = double(reach * std::abs(w) + std::abs(b));
    }
  }
  return f;
}

// dx = rstd * (h - mean(h) - xhat * mean(h * xhat)) with h = dy * weight; without the second term where nothing is
// centred.
inline Backward backward(const Grouping& group, const Values& dy, const Values& x, const Values& weight,
                         const Options& options, bool centred) {
  const Forward f = forward(group, x, {}, {}, {options.eps, false, {}}, centred);
  Backward b;
  b.dx.resize(x.size());
  b.dx_magnitude.resize(x.size());
  std::vector<Real> dweight(group.parameters), dbias(group.parameters), dweight_size(group.parameters),
      dbias_size(group.parameters);
  for (std::size_t g = 0; g < group.groups; ++g) {
    const Real rstd = f.rstd[g], n = Real(group.count), reach = f.reach[g];
    Real mean_h = 0, mean_hx = 0, mean_abs_h = 0;
    const auto h = [&](std::size_t j) {
      return Real(dy[group.index(g, j)]) * gain(weight, group.parameter(g, j), options.unit_offset);
    };
    for (std::size_t j = 0; j < group.count; ++j) {
      const Real xhat = f.xhat[group.index(g, j)];
      if (centred) mean_h += h(j) / n;
      mean_hx += h(j) * xhat / n;
      mean_abs_h += std::abs(h(j)) / n;
    }
    for (std::size_t j = 0; j < group.count; ++j) {
      const std::size_t at = group.index(g, j), p = group.parameter(g, j);
      const Real xhat = f.xhat[at], dy_at = dy[at];
      b.dx[at] = double(rstd * (h(j) - mean_h - xhat * mean_hx));
      b.dx_magnitude[at] = double(rstd * (std::abs(h(j)) + mean_abs_h + reach * reach * mean_abs_h));
      dweight[p] += dy_at * xhat;
      dbias[p] += dy_at;
      dweight_size[p] += std::abs(dy_at) * reach;
      dbias_size[p] += std::abs(dy_at);
    }
  }
  for (std::size_t p = 0; p < group.parameters; ++p) {
    b.dweight.push_back(double(dweight[p]));
    b.dbias.push_back(double(dbias[p]));
    b.dweight_magnitude.push_back(double(dweight_size[p]));
    b.dbias_magnitude.push_back(double(dbias_size[p]));
  }
  return b;
}

}  // namespace detail

inline Forward rms_norm(const Slab& s, const Values& x, const Values& weight, const Values& bias, const Options& o) {
  return detail::forward(detail::by_row(s), x, weight, bias, o, false);
}
inline Backward rms_norm_backward(const Slab& s, const Values& dy, const Values& x, const Values& weight,
                                  const Options& o) {
  return detail::backward(detail::by_row(s), dy, x, weight, o, false);
}
inline Forward layer_norm(const Slab& s, const Values& x, const Values& weight, const Values& bias, const Options& o) {
  return detail::forward(detail::by_row(s), x, weight, bias, o, true);
}
inline Backward layer_norm_backward(const Slab& s, const Values& dy, const Values& x, const Values& weight,
                                    const Options& o) {
  return detail::backward(detail::by_row(s), dy, x, weight, o, true);
}
// Training mode; `s.length` counts the channels.
inline Forward batch_norm(const Slab& s, const Values& x, const Values& weight, const Values& bias, const Options& o) {
  return detail::forward(detail::by_channel(s), x, weight, bias, o, true);
}
inline Backward batch_norm_backward(const Slab& s, const Values& dy, const Values& x, const Values& weight,
                                    const Options& o) {
  return detail::backward(detail::by_channel(s), dy, x, weight, o, true);
}

inline Values add(const Values& a, const Values& b) {
  Values sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

// To the nearest bfloat16, ties to even, for finite numbers.
inline double round_to_bfloat16(double value) {
  if (value == 0) return value;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // in [0.5, 1): 8 significant bits are 256 steps
  return std::ldexp(std::nearbyint(fraction * 256), exponent - 8);
}

}  // namespace reference
