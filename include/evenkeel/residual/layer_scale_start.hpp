/// Where LayerScale starts. H. Touvron et al., "Going deeper with Image Transformers", 2021, section 2.
#pragma once

#include "evenkeel/device.hpp"
#include "evenkeel/error.hpp"

namespace evenkeel {

/// The paper's start value by the number of layers: 0.1 up to 18, 1e-5 up to 24, 1e-6 beyond. Throws ShapeError for a
/// depth below 1.
inline double layer_scale_start(Index depth) {
  if (depth < 1) detail::throw_shape_error("layer_scale_start", "depth is ", depth, ", expected 1 or more");
  return depth <= 18 ? 0.1 : depth <= 24 ? 1e-5 : 1e-6;
}

}  // namespace evenkeel
