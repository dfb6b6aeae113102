// The norms of weights as their formulas read, in long double over plain vectors. As reference.hpp, it includes nothing
// of evenkeel. The `length` of a slab counts the output units; a whole weight is one unit of a slab {1, 1, size}.
#pragma once

#include "support/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace reference {

// Results, and what the terms of each add up to without cancellation.
struct Weighed {
  Values value, magnitude;
};

struct WeightGradients {
  Weighed dweight;  // of v or w
  Weighed dgain;    // of g, gain or gamma
};

namespace detail {

inline Real at_or_one(const Values& gain, std::size_t unit) { return gain.empty() ? 1 : Real(gain[unit]); }

inline Weighed sized(std::size_t size) { return {Values(size), Values(size)}; }

inline void put(Weighed& to, std::size_t i, Real value, Real magnitude) {
  to.value[i] = double(value);
  to.magnitude[i] = double(magnitude);
}

// sqrt(sum of squares) of one unit; long double has room for the squares of every double.
inline Real unit_norm(const Slab& s, const Values& v, std::size_t unit) {
  Real squares = 0;
  for (std::size_t r = 0; r < s.rows(); ++r) squares += Real(v[s.at(r, unit)]) * Real(v[s.at(r, unit)]);
  return std::sqrt(squares);
}

}  // namespace detail

inline Weighed weight_norm(const Slab& s, const Values& v, const Values& g) {
  Weighed w = detail::sized(v.size());
  for (std::size_t unit = 0; unit < s.length; ++unit) {
    const Real norm = detail::unit_norm(s, v, unit);
    for (std::size_t r = 0; r < s.rows(); ++r) {
      const std::size_t i = s.at(r, unit);
      const Real value = norm > 0 ? Real(g[unit]) * Real(v[i]) / norm : 0;
      detail::put(w, i, value, std::abs(value));
    }
  }
  return w;
}

inline WeightGradients weight_norm_backward(const Slab& s, const Values& dw, const Values& v, const Values& g) {
  WeightGradients d{detail::sized(v.size()), detail::sized(s.length)};
  for (std::size_t unit = 0; unit < s.length; ++unit) {
    const Real norm = detail::unit_norm(s, v, unit);
    if (norm == 0) continue;
    Real dot = 0, dot_size = 0;
    for (std::size_t r = 0; r < s.rows(); ++r) {
      const Real term = Real(dw[s.at(r, unit)]) * Real(v[s.at(r, unit)]) / norm;
      dot += term;
      dot_size += std::abs(term);
    }
    detail::put(d.dgain, unit, dot, dot_size);
    for (std::size_t r = 0; r < s.rows(); ++r) {
      const std::size_t i = s.at(r, unit);
      const Real direction = Real(v[i]) / norm, factor = Real(g[unit]) / norm;
      detail::put(d.dweight, i, factor * (Real(dw[i]) - direction * dot),
                  std::abs(factor) * (std::abs(Real(dw[i])) + std::abs(direction) * dot_size));
    }
  }
  return d;
}

enum class Standardization { plain, clamped, added };

namespace detail {

struct UnitStatistics {
  Real first = 0, delta = 0;  // mean = first + delta: of 1e4 and more, one number would cost the spread its digits
  Real rstd = 0, slope = 0;   // slope: mean(h * xhat) * slope is what the variance takes from the gradient
  Real size = 0;              // of what the spread was taken of
  Real centred(double w) const { return Real(w) - first - delta; }
};

inline UnitStatistics unit_statistics(const Slab& s, const Values& w, std::size_t unit, Standardization kind,
                                      double eps) {
  UnitStatistics u;
  const Real n = Real(s.rows());
  u.first = w[s.at(0, unit)];
  for (std::size_t r = 0; r < s.rows(); ++r) u.delta += (Real(w[s.at(r, unit)]) - u.first) / n;
  Real var = 0;
  for (std::size_t r = 0; r < s.rows(); ++r) {
    const Real c = u.centred(w[s.at(r, unit)]);
    var += c * c;
    u.size = std::max(u.size, std::abs(c));
  }
  var /= n;
  Real square = 0;
  if (kind == Standardization::plain) {
    square = var + Real(eps);
    u.slope = 1;
  } else if (kind == Standardization::added) {
    square = n * (var + Real(eps));
    u.slope = n;
  } else {
    square = std::max(var * n, Real(eps));
    u.slope = var * n > Real(eps) ? n : 0;
  }
  u.rstd = square > 0 ? 1 / std::sqrt(square) : 0;
  return u;
}

}  // namespace detail

inline Weighed standardized(const Slab& s, const Values& w, const Values& gain, Standardization kind, double eps) {
  Weighed y = detail::sized(w.size());
  for (std::size_t unit = 0; unit < s.length; ++unit) {
    const auto u = detail::unit_statistics(s, w, unit, kind, eps);
    const Real g = detail::at_or_one(gain, unit);
    for (std::size_t r = 0; r < s.rows(); ++r) {
      const std::size_t i = s.at(r, unit);
      const Real c = u.centred(w[i]);
      detail::put(y, i, g * c * u.rstd, std::abs(g * c) * u.rstd + std::abs(g) * u.rstd * u.size);
    }
  }
  return y;
}

inline WeightGradients standardized_backward(const Slab& s, const Values& dy, const Values& w, const Values& gain,
                                             Standardization kind, double eps) {
  WeightGradients d{detail::sized(w.size()), detail::sized(s.length)};
  const Real n = Real(s.rows());
  for (std::size_t unit = 0; unit < s.length; ++unit) {
    const auto u = detail::unit_statistics(s, w, unit, kind, eps);
    const Real g = detail::at_or_one(gain, unit);
    Real sum = 0, sum_size = 0, dot = 0, dot_size = 0;
    const auto xhat = [&](std::size_t r) { return u.centred(w[s.at(r, unit)]) * u.rstd; };
    for (std::size_t r = 0; r < s.rows(); ++r) {
      const Real h = dy[s.at(r, unit)];
      sum += h;
      sum_size += std::abs(h);
      dot += h * xhat(r);
      dot_size += std::abs(h) * (std::abs(xhat(r)) + u.size * u.rstd);
    }
    detail::put(d.dgain, unit, dot, dot_size);
    for (std::size_t r = 0; r < s.rows(); ++r) {
      const std::size_t i = s.at(r, unit);
      const Real h = dy[i], reach = std::abs(xhat(r)) + u.size * u.rstd;
      detail::put(d.dweight, i, g * u.rstd * (h - sum / n - xhat(r) * u.slope * dot / n),
                  std::abs(g) * u.rstd * (std::abs(h) + sum_size / n + reach * u.slope * dot_size / n));
    }
  }
  return d;
}

// The largest singular value as the power iteration sees it. The columns of the matrix are the rows of the slab.
struct Spectral {
  Values u, v;  // after the steps
  Real sigma = 0;
  Weighed w_hat;
  Weighed dweight, dgamma;
};

inline Spectral spectral_norm(const Slab& s, const Values& dw_hat, const Values& w, Values u_start, Values v_start,
                              double gamma, int steps) {
  std::vector<Real> u(u_start.begin(), u_start.end()), v(v_start.begin(), v_start.end());
  const auto normalize = [](const std::vector<Real>& from, std::vector<Real>& to) {
    Real squares = 0;
    for (Real x : from) squares += x * x;
    if (squares == 0) return;
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = from[i] / std::sqrt(squares);
  };
  const auto at = [&](std::size_t row, std::size_t column) { return Real(w[s.at(column, row)]); };
  for (int step = 0; step < steps; ++step) {
    std::vector<Real> columns(s.rows()), rows(s.length);
    for (std::size_t i = 0; i < s.length; ++i)
      for (std::size_t j = 0; j < s.rows(); ++j) columns[j] += at(i, j) * u[i];
    normalize(columns, v);
    for (std::size_t i = 0; i < s.length; ++i)
      for (std::size_t j = 0; j < s.rows(); ++j) rows[i] += at(i, j) * v[j];
    normalize(rows, u);
  }
  Spectral result;
  for (std::size_t i = 0; i < s.length; ++i)
    for (std::size_t j = 0; j < s.rows(); ++j) result.sigma += u[i] * at(i, j) * v[j];
  result.w_hat = result.dweight = detail::sized(w.size());
  result.dgamma = detail::sized(1);
  result.u.assign(u.begin(), u.end());
  result.v.assign(v.begin(), v.end());
  if (result.sigma == 0) return result;
  // An error of W v is relative to the norms of W and v, of which the norm of W v is a tenth or so: hence the factor.
  const Real reach = 100;
  Real dot = 0, dot_size = 0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const Real value = Real(w[i]) / result.sigma;
    detail::put(result.w_hat, i, Real(gamma) * value, reach * std::abs(Real(gamma) * value));
    dot += Real(dw_hat[i]) * value;
    dot_size += reach * std::abs(Real(dw_hat[i]) * value);
  }
  detail::put(result.dgamma, 0, dot, dot_size);
  for (std::size_t row = 0; row < s.length; ++row)
    for (std::size_t column = 0; column < s.rows(); ++column) {
      const std::size_t i = s.at(column, row);
      const Real factor = Real(gamma) / result.sigma, outer = u[row] * v[column];
      detail::put(result.dweight, i, factor * (Real(dw_hat[i]) - dot * outer),
                  reach * std::abs(factor) * (std::abs(Real(dw_hat[i])) + dot_size * std::abs(outer)));
    }
  return result;
}

}  // namespace reference
