#pragma once

#include "evenkeel/storage.hpp"
#include "evenkeel/tensor.hpp"
#include "nn/matrix.hpp"

namespace nn {

/// What layers of an image network see: (images, channels, positions), positions = height * width.
using Planes = Eigen::TensorMap<Eigen::Tensor<float, 3, Eigen::RowMajor>>;

/// Memory for one of them; grows and never shrinks.
class PlanesBuffer {
 public:
  Planes get(Index images, Index channels, Index positions) {
    memory_.reserve(images * channels * positions);
    return {memory_.data(), images, channels, positions};
  }
  Planes like(const Planes& x) { return get(x.dimension(0), x.dimension(1), x.dimension(2)); }

 private:
  ek::HostBuffer<float> memory_;
};

}  // namespace nn
