// TaperNorm as its formulas read, in long double. Includes nothing of evenkeel.
#pragma once

#include "support/reference.hpp"

#include <cmath>
#include <cstddef>

namespace reference {

struct TaperData {
  std::size_t rows, length;
  Values x, dy;
  Values weight, scale_weight, bias;  // empty: none
  double gate, factor, eps;
  bool centred;
};

// A number beside what its terms add up to.
struct Sized {
  Values value, size;
  explicit Sized(std::size_t n) : value(n), size(n) {}
  void add(std::size_t i, Real v) {
    value[i] = double(value[i] + v);
    size[i] += double(std::abs(v));
  }
};

struct TaperResult {
  Sized y, dx, dweight, dscale_weight, dbias;
  double dgate = 0, dfactor = 0;
  double numerator = 0, denominator = 0;  // of the calibration
};

inline TaperResult taper_norm(const TaperData& d) {
  const std::size_t n = d.length;
  TaperResult out{Sized(d.x.size()), Sized(d.x.size()), Sized(n), Sized(n), Sized(n)};
  const auto of = [](const Values& v, std::size_t i) { return v.empty() ? Real(1) : Real(v[i]); };
  const Real g = d.gate, k = (1 - Real(d.gate)) * Real(d.factor);
  for (std::size_t r = 0; r < d.rows; ++r) {
    const auto x = [&](std::size_t i) { return Real(d.x[r * n + i]); };
    const auto dy = [&](std::size_t i) { return Real(d.dy[r * n + i]); };
    Real mean = 0, mean_size = 0, squares = 0;
    for (std::size_t i = 0; i < n && d.centred; ++i) mean += x(i) / Real(n), mean_size += std::abs(x(i)) / Real(n);
    for (std::size_t i = 0; i < n; ++i) squares += (x(i) - mean) * (x(i) - mean) / Real(n);
    const Real root = std::sqrt(squares + Real(d.eps)), rstd = root > 0 ? 1 / root : 0;
    Real mean_flow = 0, mean_flow_size = 0, radial = 0, radial_size = 0, weighted = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const Real h = x(i) - mean, w = of(d.weight, i), c = of(d.scale_weight, i);
      const Real flow = dy(i) * (g * rstd * w + k * c);
      mean_flow += flow / Real(n);
      mean_flow_size += (std::abs(dy(i) * g * rstd * w) + std::abs(dy(i) * k * c)) / Real(n);
      radial += dy(i) * w * h * rstd / Real(n);
      radial_size += std::abs(dy(i) * w * h * rstd) / Real(n);
      weighted += h * w * h * w;
      out.dgate += double(dy(i) * (h * rstd * w - Real(d.factor) * h * c));
      out.dfactor += double((1 - g) * dy(i) * h * c);
    }
    out.numerator += double(weighted * rstd) / double(d.rows);
    out.denominator += double(weighted) / double(d.rows);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t at = r * n + i;
      const Real h = x(i) - mean, h_size = std::abs(x(i)) + mean_size, w = of(d.weight, i), c = of(d.scale_weight, i);
      out.y.value[at] = double(g * h * rstd * w + k * h * c + (d.bias.empty() ? 0 : Real(d.bias[i])));
      out.y.size[at] = double(h_size * (g * rstd * std::abs(w) + std::abs(k * c)) +
                              (d.bias.empty() ? 0 : std::abs(Real(d.bias[i]))));
      const Real flow = dy(i) * (g * rstd * w + k * c), around = g * rstd * h * rstd * radial;
      out.dx.value[at] = double(flow - (d.centred ? mean_flow : 0) - around);
      out.dx.size[at] = double(std::abs(dy(i) * g * rstd * w) + std::abs(dy(i) * k * c) + mean_flow_size +
                               g * rstd * h_size * rstd * radial_size);
      out.dweight.add(i, g * dy(i) * h * rstd);
      out.dscale_weight.add(i, k * dy(i) * h);
      out.dbias.add(i, dy(i));
      out.dweight.size[i] += double(g * std::abs(dy(i)) * (h_size - std::abs(h)) * rstd);
      out.dscale_weight.size[i] += double(std::abs(k * dy(i)) * (h_size - std::abs(h)));
    }
  }
  return out;
}

}  // namespace reference
