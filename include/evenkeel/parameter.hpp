/// Parameters: values and gradients that a layer owns and an optimizer walks over.
#pragma once

#include "evenkeel/storage.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace evenkeel {

/// Which parameters a layer has.
enum class Affine { off, weight, weight_and_bias };

inline namespace EVENKEEL_ISA {

/// One parameter as an optimizer sees it: pointers into the memory of the parameter's device.
///
///     norm.for_each_parameter([&](ek::ParameterRef<float> p) { adam.update(p.value, p.gradient, p.size,
///     p.weight_decay); });
template <class T>
struct ParameterRef {
  std::string_view name;  ///< torch's name for it: weight, bias, ...
  T* value = nullptr;     ///< (size)
  T* gradient = nullptr;  ///< (size), accumulated by backward
  Index size = 0;
  bool weight_decay = true;  ///< false for norm weights, biases, gates and scales
};

/// Values and gradients of one parameter, zero at first.
template <class T, class Storage = HostStorage>
class Parameter {
 public:
  Parameter(std::string name, Index size, bool weight_decay = true)
      : name_(std::move(name)), size_(size), weight_decay_(weight_decay) {
    value_.reserve(size);
    gradient_.reserve(size);
  }
  T* value() { return value_.data(); }
  const T* value() const { return value_.data(); }
  T* gradient() { return gradient_.data(); }
  const T* gradient() const { return gradient_.data(); }
  Index size() const { return size_; }
  const std::string& name() const { return name_; }

  /// A copy of the values on the host. Waits for a device.
  std::vector<T> host_values() const {
    std::vector<T> values(static_cast<std::size_t>(size_));
    Storage::read(value_.data(), values.data(), size_);
    return values;
  }

  void fill(T value) { Storage::fill(value_.data(), size_, value); }
  void zero_gradient() { Storage::fill(gradient_.data(), size_, T(0)); }
  ParameterRef<T> ref() { return {name_, value(), gradient(), size_, weight_decay_}; }

 private:
  std::string name_;
  Index size_;
  bool weight_decay_;
  typename Storage::template Buffer<T> value_;     // (size)
  typename Storage::template Buffer<T> gradient_;  // (size)
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
