/// Activations that a block keeps from its forward to its backward, in the shape of one of its arguments.
#pragma once

#include "evenkeel/storage.hpp"
#include "evenkeel/view.hpp"

#include <utility>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// A map of memory in the shape and storage order of an X. tensor.hpp has the one for Eigen tensors.
template <class X>
struct MapLike {
  static_assert(EigenDense<X>, "evenkeel: include evenkeel/tensor.hpp to pass Eigen tensors to residual blocks");
  static auto make(scalar_t<X>* data, const X& x) {
    using Plain = typename X::PlainObject;
    if constexpr (X::IsVectorAtCompileTime)
      return Eigen::Map<Plain>(data, x.size());
    else
      return Eigen::Map<Plain>(data, x.rows(), x.cols());
  }
};

/// Throws where a block's output is its input, which its backward still needs.
template <class X, class Y>
void require_apart(const char* function, const X& x, const Y& y) {
  if (static_cast<const void*>(data_of(x)) == static_cast<const void*>(data_of(y)) && x.size() > 0)
    throw_shape_error(function, "y is x, expected memory apart from it");
}

/// Memory for one activation; grows and never shrinks.
template <class T, class Storage = HostStorage>
class Activation {
 public:
  /// A map of it in x's shape. The content is that of the last call for the same shape.
  template <class X>
  auto like(const X& x) {
    static_assert(std::is_same_v<scalar_t<X>, T>, "evenkeel: a block takes the scalar that it was made for");
    memory_.ensure(static_cast<Index>(x.size()));
    return MapLike<X>::make(memory_.data(), x);
  }
  /// Makes room for an activation of x's shape.
  template <class X>
  void reserve(const X& x) {
    memory_.reserve(static_cast<Index>(x.size()));
  }

 private:
  typename Storage::template Buffer<T> memory_;
};

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
