// A linear or convolution layer and an affine map by the book: plain loops in double, the reference of the folds.
#pragma once

#include "evenkeel/fold/affine_map.hpp"
#include "support/data.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace fold_test {

namespace ek = evenkeel;
using Values = std::vector<double>;

// Stride 1, no padding. w is (out, in / groups, kernel), or (in, out / groups, kernel) where transposed; a linear layer
// has kernel 1 and runs over positions.
struct Layer {
  std::size_t in, out, kernel = 1, groups = 1;
  bool transposed = false;
  Values w = {}, b = {};

  std::size_t count() const { return in * out / groups * kernel; }
};

template <class T>
Layer random_layer(Layer layer, std::uint64_t seed) {
  layer.w = support::normal<T>(layer.count(), seed);
  layer.b = support::normal<T>(layer.out, seed + 1000);
  return layer;
}

inline constexpr std::size_t positions = 5;

// x is (in, positions of the input), y (out, positions of the output).
inline Values forward(const Layer& l, const Values& x) {
  const std::size_t from = x.size() / l.in;
  const std::size_t to = l.transposed ? from + l.kernel - 1 : from - l.kernel + 1;
  const std::size_t in_group = l.in / l.groups, out_group = l.out / l.groups;
  Values y(l.out * to, 0.0);
  for (std::size_t o = 0; o < l.out; ++o) {
    for (std::size_t p = 0; p < to; ++p) y[o * to + p] = l.b.empty() ? 0 : l.b[o];
    const std::size_t group = o / out_group;
    for (std::size_t i = group * in_group; i < (group + 1) * in_group; ++i)
      for (std::size_t k = 0; k < l.kernel; ++k)
        for (std::size_t p = 0; p < (l.transposed ? from : to); ++p) {
          if (l.transposed)
            y[o * to + p + k] += x[i * from + p] * l.w[(i * out_group + o % out_group) * l.kernel + k];
          else
            y[o * to + p] += x[i * from + p + k] * l.w[(o * in_group + i % in_group) * l.kernel + k];
        }
  }
  return y;
}

// x is (features, positions).
inline Values apply(const ek::AffineMap& map, Values x) {
  const std::size_t features = map.scale.size(), count = x.size() / features;
  for (std::size_t p = 0; p < count; ++p) {
    double mean = 0;
    for (std::size_t f = 0; f < features; ++f) mean += x[f * count + p] / double(features);
    for (std::size_t f = 0; f < features; ++f)
      x[f * count + p] =
          (x[f * count + p] - (map.centred ? mean : 0)) * map.scale[f] + (map.offset.empty() ? 0 : map.offset[f]);
  }
  return x;
}

inline ek::AffineMap random_map(std::size_t features, std::uint64_t seed, bool offset = true, bool centred = false) {
  return {support::normal<float>(features, seed, 1, 0.5),
          offset ? support::normal<float>(features, seed + 1000) : Values{}, centred};
}

inline double largest(const Values& values) {
  double most = 0;
  for (const double v : values) most = std::isnan(v) ? INFINITY : std::max(most, std::abs(v));
  return most;
}
inline double distance(const Values& a, const Values& b) {
  if (a.size() != b.size()) return INFINITY;
  Values apart(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) apart[i] = a[i] - b[i];
  return largest(apart);
}

}  // namespace fold_test
