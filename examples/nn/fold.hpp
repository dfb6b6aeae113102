#pragma once

#include "evenkeel/fold/fold.hpp"
#include "nn/linear.hpp"

namespace nn {

/// Whether the norm can become a fixed map that the next layer takes in, and whether it does so by a gate.
template <class Norm>
inline constexpr bool is_removable_norm = requires(const Norm& norm) {
  norm.linear_map();
};
template <class Norm>
inline constexpr bool is_tapered_norm = requires(const Norm& norm) {
  norm.gate();
};

template <class Norm>
bool is_fixed_map(const Norm& norm) {
  if constexpr (is_tapered_norm<Norm>)
    return norm.gate() == 0;
  else
    return norm.frozen();
}

/// A norm that has become a fixed map goes into the layer that reads its output.
template <class Norm, class T>
void fold_into(const Norm& norm, Linear<T>& layer) {
  const ek::AffineMap map = norm.linear_map();
  const ek::FoldOptions torch_layout{.axes = {.input = {1}, .output = {0}}};
  auto weight = layer.weight();  // (outputs, inputs)
  if (map.has_offset())
    ek::fold_into_next(map, weight, layer.bias(), weight, layer.bias(), torch_layout);
  else
    ek::fold_into_next(map, weight, ek::none, weight, ek::none, torch_layout);
}

}  // namespace nn
