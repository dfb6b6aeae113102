// Norms over channels as their formulas read, in long double: BatchNorm with its variants, GroupNorm, InstanceNorm. Like
// reference.hpp, this header includes nothing of evenkeel.
#pragma once

#include "support/reference.hpp"

#include <array>

namespace reference {

enum class Act { identity, relu, silu };

inline Real act(Act a, Real u) {
  if (a == Act::relu) return u > 0 ? u : 0;
  return a == Act::silu ? u / (1 + std::exp(-u)) : u;
}
inline Real act_slope(Act a, Real u) {
  if (a == Act::relu) return u > 0 ? 1 : 0;
  const Real s = 1 / (1 + std::exp(-u));
  return a == Act::silu ? s * (1 + u * (1 - s)) : 1;
}

// N samples, C channels, S positions; element (n, c, s) has number (n * C + c) * S + s. Statistics are shared by `ghost`
// samples and by the channels of one of `groups` groups.
struct Channels {
  std::size_t N = 0, C = 0, S = 0;
  std::size_t ghost = 1, groups = 1;
  double eps = 1e-5;
  Act activation = Act::identity;
  Values x, dy, weight, bias, residual, mask;  // weight, bias, residual, mask (N, S) may be empty

  std::size_t size() const { return N * C * S; }
  std::size_t at(std::size_t n, std::size_t c, std::size_t s) const { return (n * C + c) * S + s; }
  bool valid(std::size_t n, std::size_t s) const { return mask.empty() || mask[n * S + s] > 0; }
};

struct ChannelResult {
  Values y, dx, dresidual, dweight, dbias, mean, variance, count;  // the last three per (sample set, group)
  Values y_magnitude, dx_magnitude, dweight_magnitude, dbias_magnitude;
  std::size_t summed = 0;  // the longest sum
};

inline ChannelResult channel_norm(const Channels& p) {
  ChannelResult r;
  r.y.assign(p.size(), 0), r.dx = r.dresidual = r.y_magnitude = r.dx_magnitude = r.y;
  std::vector<Real> dweight(p.C), dbias(p.C), dweight_size(p.C), dbias_size(p.C);
  const std::size_t width = p.C / p.groups;
  for (std::size_t set = 0; set < p.N / p.ghost; ++set)
    for (std::size_t g = 0; g < p.groups; ++g) {
      std::vector<std::array<std::size_t, 3>> places;
      for (std::size_t n = set * p.ghost; n < (set + 1) * p.ghost; ++n)
        for (std::size_t c = g * width; c < (g + 1) * width; ++c)
          for (std::size_t s = 0; s < p.S; ++s)
            if (p.valid(n, s)) places.push_back({n, c, s});
      const auto place = [&](std::size_t j) { return p.at(places[j][0], places[j][1], places[j][2]); };
      r.summed = std::max(r.summed, places.size());
      const Real n = Real(places.size());
      Real mean = 0, square = 0;
      for (std::size_t j = 0; j < places.size(); ++j) mean += p.x[place(j)] / n;
      for (std::size_t j = 0; j < places.size(); ++j) square += (p.x[place(j)] - mean) * (p.x[place(j)] - mean);
      r.mean.push_back(double(mean)), r.variance.push_back(places.empty() ? 0 : double(square / n));
      r.count.push_back(double(n));
      if (places.empty()) continue;
      const Real root = std::sqrt(square / n + Real(p.eps)), rstd = root > 0 ? 1 / root : 0;
      std::vector<Real> xhat(places.size()), h(places.size()), size(places.size());
      Real reach = 0, mean_h = 0, mean_hx = 0, mean_abs = 0;
      for (std::size_t j = 0; j < places.size(); ++j) {
        xhat[j] = (p.x[place(j)] - mean) * rstd;
        reach = std::max(reach, std::abs(xhat[j]));
      }
      reach *= 1 + std::min<Real>(16, xhat[0] * xhat[0]);
      for (std::size_t j = 0; j < places.size(); ++j) {
        const std::size_t c = places[j][1], i = place(j);
        const Real w = p.weight.empty() ? 1 : Real(p.weight[c]), b = p.bias.empty() ? 0 : Real(p.bias[c]);
        const Real res = p.residual.empty() ? 0 : Real(p.residual[i]);
        const Real u = xhat[j] * w + b + res, u_size = reach * std::abs(w) + std::abs(b) + std::abs(res);
        r.y[i] = double(act(p.activation, u));
        r.y_magnitude[i] = double(u_size);
        const Real dy = p.dy[i], g_at = dy * act_slope(p.activation, u);
        size[j] = std::abs(dy) * (p.activation == Act::silu ? 1 + u_size : 1);
        h[j] = g_at * w;
        r.dresidual[i] = double(g_at);
        mean_h += h[j] / n, mean_hx += h[j] * xhat[j] / n, mean_abs += size[j] * std::abs(w) / n;
        dweight[c] += g_at * xhat[j], dbias[c] += g_at;
        dweight_size[c] += size[j] * reach, dbias_size[c] += size[j];
        size[j] *= std::abs(w);
      }
      for (std::size_t j = 0; j < places.size(); ++j) {
        r.dx[place(j)] = double(rstd * (h[j] - mean_h - xhat[j] * mean_hx));
        r.dx_magnitude[place(j)] = double(rstd * (size[j] + mean_abs + reach * reach * mean_abs));
      }
    }
  for (std::size_t c = 0; c < p.C; ++c) {
    r.dweight.push_back(double(dweight[c])), r.dbias.push_back(double(dbias[c]));
    r.dweight_magnitude.push_back(double(dweight_size[c])), r.dbias_magnitude.push_back(double(dbias_size[c]));
  }
  return r;
}

}  // namespace reference
