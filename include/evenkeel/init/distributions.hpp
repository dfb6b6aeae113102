/// Tensors filled from a distribution: constant, uniform, normal.
///
/// What is filled is a tensor that lies in one piece: Eigen::Tensor, TensorMap, Matrix, Array, Map, std::span, anything
/// with data() and size(); or a pointer and a size. Elements are numbered in memory order, so row-major data hold what
/// torch's tensor of that shape holds, and a column-major matrix the transposed arrangement. Eigen maps, blocks and
/// refs that have gaps are a ShapeError.
///
/// Where the numbers come from is the last argument but options: a RandomStream, which always starts at its index 0
/// (half and bfloat16 are rounded floats), or a TorchRandom, which moves on by what torch would draw (float and
/// double).
#pragma once

#include "evenkeel/device.hpp"
#include "evenkeel/error.hpp"
#include "evenkeel/init/random.hpp"
#include "evenkeel/init/torch_random.hpp"

#include <cmath>
#include <concepts>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace evenkeel {

/// A tensor whose elements can be written through a pointer.
template <class T>
concept Fillable = requires(T& tensor) {
  requires RandomScalar<std::remove_pointer_t<decltype(tensor.data())>>;
  static_cast<Index>(tensor.size());
};

/// A generator that fills memory: RandomStream, TorchRandom, or one with their two members.
template <class S>
concept RandomSource = requires(S& source, float* data, Index count) {
  source.fill_uniform(data, count, 0.0, 1.0);
  source.fill_normal(data, count, 0.0, 1.0);
};

namespace detail {

template <class V>
std::string value_text(V value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

inline void require(bool ok, const char* function, const char* argument, double got, const char* expected) {
  if (!ok) throw_shape_error(function, argument, " is ", value_text(got), ", expected ", expected);
}

/// The number of elements, once the tensor is known to have no gaps.
template <class Tensor>
Index contiguous_size(const char* function, const Tensor& tensor) {
  const auto size = static_cast<Index>(tensor.size());
  if constexpr (requires { tensor.innerStride() + tensor.outerStride() + tensor.innerSize() + tensor.outerSize(); }) {
    const bool gaps = (tensor.innerSize() > 1 && tensor.innerStride() != 1) ||
                      (tensor.outerSize() > 1 && tensor.outerStride() != tensor.innerSize());
    if (size > 0 && gaps) {
      throw_shape_error(function, "the tensor has strides ", value_text(tensor.innerStride()), " and ",
                        value_text(tensor.outerStride()), ", expected 1 and ", value_text(tensor.innerSize()),
                        ", elements without gaps");
    }
  }
  return size;
}

template <class T, class Source>
void fill_uniform(const char* function, T* data, Index size, double lo, double hi, Source& source) {
  require(size >= 0, function, "size", static_cast<double>(size), "at least 0");
  require(std::isfinite(hi - lo), function, "hi - lo", hi - lo, "a finite number");
  if (lo > hi) {
    throw_shape_error(function, "lo is ", value_text(lo), " and hi is ", value_text(hi), ", expected lo <= hi");
  }
  source.fill_uniform(data, size, lo, hi);
}

template <class T, class Source>
void fill_normal(const char* function, T* data, Index size, double mean, double std, Source& source) {
  require(size >= 0, function, "size", static_cast<double>(size), "at least 0");
  require(std::isfinite(mean), function, "mean", mean, "a finite number");
  require(std::isfinite(std) && std >= 0, function, "std", std, "a finite number of at least 0");
  source.fill_normal(data, size, mean, std);
}

}  // namespace detail

/// Every element = value. Example: `ek::constant(bias, 0);`
template <RandomScalar T>
void constant(T* data, Index size, double value) {
  detail::require(size >= 0, "constant", "size", static_cast<double>(size), "at least 0");
  for (Index i = 0; i < size; ++i) data[i] = static_cast<T>(value);
}

template <Fillable Tensor>
void constant(Tensor&& tensor, double value) {
  constant(tensor.data(), detail::contiguous_size("constant", tensor), value);
}

/// U(lo, hi): fma(u, hi - lo, lo) with u in [0, 1). Throws ShapeError where lo > hi or a bound is not finite.
/// Example: `ek::uniform(weight, -0.1, 0.1, ek::RandomStream(42, "head.weight"));`
template <RandomScalar T, RandomSource Source>
void uniform(T* data, Index size, double lo, double hi, Source&& source) {
  detail::fill_uniform("uniform", data, size, lo, hi, source);
}

template <Fillable Tensor, RandomSource Source>
void uniform(Tensor&& tensor, double lo, double hi, Source&& source) {
  uniform(tensor.data(), detail::contiguous_size("uniform", tensor), lo, hi, source);
}

/// N(mean, std), std being the standard deviation. Throws ShapeError where std is negative or a number is not finite.
/// Example: `ek::normal(embedding, 0.0, 0.02, ek::RandomStream(42, "wte.weight"));`
template <RandomScalar T, RandomSource Source>
void normal(T* data, Index size, double mean, double std, Source&& source) {
  detail::fill_normal("normal", data, size, mean, std, source);
}

template <Fillable Tensor, RandomSource Source>
void normal(Tensor&& tensor, double mean, double std, Source&& source) {
  normal(tensor.data(), detail::contiguous_size("normal", tensor), mean, std, source);
}

}  // namespace evenkeel
