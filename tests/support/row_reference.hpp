// The row operations beyond LayerNorm and RMSNorm as their formulas read, in long double. Like reference.hpp, whose
// types it shares, this header includes nothing of evenkeel.
#pragma once

#include "support/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace reference {

namespace detail {

// Room for the results of a backward over `s` with parameters of `parameters` values.
inline Backward empty_backward(std::size_t size, std::size_t parameters) {
  Backward b;
  b.dx.assign(size, 0);
  b.dx_magnitude.assign(size, 0);
  b.dweight.assign(parameters, 0);
  b.dweight_magnitude.assign(parameters, 0);
  b.dbias.assign(parameters, 0);
  b.dbias_magnitude.assign(parameters, 0);
  return b;
}

struct L2Statistics {
  Real scale = 0;
  bool clamped = false;
};

inline L2Statistics l2_statistics(const Slab& s, const Values& x, std::size_t row, double eps) {
  Real squares = 0;
  for (std::size_t i = 0; i < s.length; ++i) squares += Real(x[s.at(row, i)]) * Real(x[s.at(row, i)]);
  const Real norm = std::sqrt(squares), divisor = std::max(norm, Real(eps));
  return {divisor > 0 ? 1 / divisor : 0, norm <= Real(eps)};
}

}  // namespace detail

// xhat = x/max(norm(x), eps); `rstd` receives the scale.
inline Forward l2_norm(const Slab& s, const Values& x, const Values& weight, const Values& bias, const Options& o) {
  Forward f;
  f.y.resize(x.size());
  f.xhat.resize(x.size());
  f.y_magnitude.resize(x.size());
  for (std::size_t r = 0; r < s.rows(); ++r) {
    const Real scale = detail::l2_statistics(s, x, r, o.eps).scale;
    f.rstd.push_back(double(scale));
    for (std::size_t i = 0; i < s.length; ++i) {
      const std::size_t at = s.at(r, i);
      const Real xhat = x[at] * scale, w = detail::gain(weight, i, o.unit_offset), b = bias.empty() ? 0 : Real(bias[i]);
      const Real rounded = o.round_xhat ? Real(o.round_xhat(double(xhat))) : xhat;
      f.xhat[at] = double(xhat);
      f.y[at] = double(rounded * w + b);
      f.y_magnitude[at] = double(std::abs(xhat * w) + std::abs(b));
    }
  }
  return f;
}

// dx = scale * (h - xhat * sum(h * xhat)), without the second term where the length was clamped.
inline Backward l2_norm_backward(const Slab& s, const Values& dy, const Values& x, const Values& weight,
                                 const Options& o) {
  Backward b = detail::empty_backward(x.size(), s.length);
  for (std::size_t r = 0; r < s.rows(); ++r) {
    const detail::L2Statistics row = detail::l2_statistics(s, x, r, o.eps);
    Real sum = 0, size = 0;
    for (std::size_t i = 0; i < s.length; ++i) {
      const std::size_t at = s.at(r, i);
      const Real term = Real(dy[at]) * detail::gain(weight, i, o.unit_offset) * Real(x[at]) * row.scale;
      sum += term;
      size += std::abs(term);
    }
    if (row.clamped) sum = size = 0;
    for (std::size_t i = 0; i < s.length; ++i) {
      const std::size_t at = s.at(r, i);
      const Real xhat = x[at] * row.scale, h = Real(dy[at]) * detail::gain(weight, i, o.unit_offset);
      b.dx[at] = double(row.scale * (h - xhat * sum));
      b.dx_magnitude[at] = double(row.scale * (std::abs(h) + std::abs(xhat) * size));
      b.dweight[i] += double(dy[at] * xhat);
      b.dweight_magnitude[i] += double(std::abs(dy[at] * xhat));
      b.dbias[i] += dy[at];
      b.dbias_magnitude[i] += std::abs(dy[at]);
    }
  }
  return b;
}

// y = weight * c(alpha * x + shift) + bias with c = tanh or erf.
enum class Curve { tanh, erf };

struct PointwiseBackward : Backward {
  double dalpha = 0, dshift = 0, dalpha_magnitude = 0, dshift_magnitude = 0;
};

namespace detail {

struct CurvePoint {
  Real value, slope;
  Real reach;  // the size of the terms of u: its rounding errors are proportional to that
  Real slope_magnitude;
};

inline CurvePoint curve_point(Curve curve, Real x, Real alpha, Real shift) {
  const Real u = alpha * x + shift, reach = std::abs(alpha * x) + std::abs(shift);
  if (curve == Curve::tanh) {
    const Real slope = 1 / (std::cosh(u) * std::cosh(u));
    return {std::tanh(u), slope, reach, slope * (1 + 2 * reach)};
  }
  const Real slope = 2 / std::sqrt(std::acos(Real(-1))) * std::exp(-u * u);
  return {std::erf(u), slope, reach, slope * (1 + 2 * std::abs(u) * reach)};
}

}  // namespace detail

inline Forward pointwise(Curve curve, const Slab& s, const Values& x, double alpha, double shift, const Values& weight,
                         const Values& bias) {
  Forward f;
  f.y.resize(x.size());
  f.y_magnitude.resize(x.size());
  for (std::size_t r = 0; r < s.rows(); ++r) {
    for (std::size_t i = 0; i < s.length; ++i) {
      const std::size_t at = s.at(r, i);
      const detail::CurvePoint c = detail::curve_point(curve, x[at], alpha, shift);
      const Real w = detail::gain(weight, i, false), b = bias.empty() ? 0 : Real(bias[i]);
      f.y[at] = double(c.value * w + b);
      f.y_magnitude[at] = double((std::abs(c.value) + c.slope * c.reach) * std::abs(w) + std::abs(b));
    }
  }
  return f;
}

inline PointwiseBackward pointwise_backward(Curve curve, const Slab& s, const Values& dy, const Values& x, double alpha,
                                            double shift, const Values& weight) {
  PointwiseBackward b;
  static_cast<Backward&>(b) = detail::empty_backward(x.size(), s.length);
  Real dalpha = 0, dshift = 0, dalpha_size = 0, dshift_size = 0;
  for (std::size_t r = 0; r < s.rows(); ++r) {
    for (std::size_t i = 0; i < s.length; ++i) {
      const std::size_t at = s.at(r, i);
      const detail::CurvePoint c = detail::curve_point(curve, x[at], alpha, shift);
      const Real h = Real(dy[at]) * detail::gain(weight, i, false), size = std::abs(h) * c.slope_magnitude;
      b.dx[at] = double(h * Real(alpha) * c.slope);
      b.dx_magnitude[at] = double(size * std::abs(Real(alpha)));
      dalpha += h * x[at] * c.slope;
      dshift += h * c.slope;
      dalpha_size += size * std::abs(x[at]);
      dshift_size += size;
      b.dweight[i] += double(dy[at] * c.value);
      b.dweight_magnitude[i] += double(std::abs(dy[at]) * (std::abs(c.value) + c.slope * c.reach));
      b.dbias[i] += dy[at];
      b.dbias_magnitude[i] += std::abs(dy[at]);
    }
  }
  b.dalpha = double(dalpha);
  b.dshift = double(dshift);
  b.dalpha_magnitude = double(dalpha_size);
  b.dshift_magnitude = double(dshift_size);
  return b;
}

struct GatedBackward : Backward {
  Values dgate, dgate_magnitude;
};

namespace detail {

inline Real silu(Real z) { return z / (1 + std::exp(-z)); }
inline Real silu_slope(Real z) {
  const Real s = 1 / (1 + std::exp(-z));
  return s * (1 + z / (1 + std::exp(z)));
}
// What the terms of the slope add up to; the argument of an exponential is exact here.
inline Real silu_slope_magnitude(Real z) { return (1 + std::abs(z) / (1 + std::exp(z))) / (1 + std::exp(-z)); }

inline Values gated(const Values& x, const Values& gate) {
  Values v(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) v[i] = double(x[i] * silu(gate[i]));
  return v;
}

}  // namespace detail

// y = rms_norm(x) * weight * silu(gate), or rms_norm(x * silu(gate)) * weight where the gate comes first.
inline Forward gated_rms_norm(const Slab& s, const Values& x, const Values& gate, const Values& weight, bool gate_first,
                              const Options& o) {
  if (gate_first) return rms_norm(s, detail::gated(x, gate), weight, {}, o);
  Forward f = rms_norm(s, x, weight, {}, o);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Real g = detail::silu(gate[i]);
    f.y[i] = double(f.y[i] * g);
    f.y_magnitude[i] = double(f.y_magnitude[i] * std::abs(g));
  }
  return f;
}

inline GatedBackward gated_rms_norm_backward(const Slab& s, const Values& dy, const Values& x, const Values& gate,
                                             const Values& weight, bool gate_first, const Options& o) {
  GatedBackward b;
  b.dgate.resize(x.size());
  b.dgate_magnitude.resize(x.size());
  static_cast<Backward&>(b) = gate_first ? rms_norm_backward(s, dy, detail::gated(x, gate), weight, o)
                                         : rms_norm_backward(s, detail::gated(dy, gate), x, weight, o);
  const Forward f = rms_norm(s, x, weight, {}, {o.eps, o.unit_offset, {}});
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Real slope = detail::silu_slope(gate[i]), size = detail::silu_slope_magnitude(gate[i]);
    if (gate_first) {
      const Real dv = b.dx[i], g = detail::silu(gate[i]), dv_size = b.dx_magnitude[i];
      b.dx[i] = double(dv * g);
      b.dx_magnitude[i] = double(dv_size * std::abs(g));
      b.dgate[i] = double(dv * x[i] * slope);
      b.dgate_magnitude[i] = double(dv_size * std::abs(Real(x[i])) * size);
    } else {
      b.dgate[i] = double(dy[i] * Real(f.y[i]) * slope);
      b.dgate_magnitude[i] = double(std::abs(Real(dy[i])) * f.y_magnitude[i] * size);
    }
  }
  return b;
}

// RMSNorm whose statistics come from the first `used` features; `rstd` receives them.
inline Forward partial_rms_norm(const Slab& s, const Values& x, const Values& weight, const Values& bias,
                                std::size_t used, const Options& o) {
  Forward f;
  f.y.resize(x.size());
  f.y_magnitude.resize(x.size());
  for (std::size_t r = 0; r < s.rows(); ++r) {
    const auto value = [&](std::size_t i) { return Real(x[s.at(r, i)]); };
    const Real rstd = detail::statistics(used, value, o.eps, false).rstd;
    f.rstd.push_back(double(rstd));
    for (std::size_t i = 0; i < s.length; ++i) {
      const Real w = detail::gain(weight, i, o.unit_offset), b = bias.empty() ? 0 : Real(bias[i]);
      f.y[s.at(r, i)] = double(value(i) * rstd * w + b);
      f.y_magnitude[s.at(r, i)] = double(std::abs(value(i) * rstd * w) + std::abs(b));
    }
  }
  return f;
}

inline Backward partial_rms_norm_backward(const Slab& s, const Values& dy, const Values& x, const Values& weight,
                                          std::size_t used, const Options& o) {
  Backward b = detail::empty_backward(x.size(), s.length);
  const Forward f = partial_rms_norm(s, x, {}, {}, used, o);
  for (std::size_t r = 0; r < s.rows(); ++r) {
    Real mean = 0, size = 0;
    const auto h = [&](std::size_t i) { return Real(dy[s.at(r, i)]) * detail::gain(weight, i, o.unit_offset); };
    for (std::size_t i = 0; i < s.length; ++i) {
      mean += h(i) * f.y[s.at(r, i)] / Real(used);
      size += std::abs(h(i) * f.y[s.at(r, i)]) / Real(used);
    }
    for (std::size_t i = 0; i < s.length; ++i) {
      const std::size_t at = s.at(r, i);
      const Real xhat = f.y[at], radial = i < used ? xhat : 0;
      b.dx[at] = double(f.rstd[r] * (h(i) - radial * mean));
      b.dx_magnitude[at] = double(f.rstd[r] * (std::abs(h(i)) + std::abs(radial) * size));
      b.dweight[i] += double(dy[at] * xhat);
      b.dweight_magnitude[i] += double(std::abs(dy[at] * xhat));
      b.dbias[i] += dy[at];
      b.dbias_magnitude[i] += std::abs(dy[at]);
    }
  }
  return b;
}

}  // namespace reference
