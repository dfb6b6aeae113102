/// Eigen's Tensor module and the maps of it that residual blocks make. Include it where Eigen::Tensor,
/// Eigen::DefaultDevice or Eigen::ThreadPoolDevice is used; define EIGEN_USE_THREADS before the first Eigen header to
/// have the last one.
#pragma once

#include "evenkeel/detail/activation.hpp"
#include "evenkeel/view.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

namespace evenkeel::detail::inline EVENKEEL_ISA {

template <EigenTensor X>
struct MapLike<X> {
  static auto make(scalar_t<X>* data, const X& x) {
    using Plain = Eigen::Tensor<scalar_t<X>, X::NumDimensions, X::Layout, typename X::Index>;
    return Eigen::TensorMap<Plain>(data, x.dimensions());
  }
};

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
