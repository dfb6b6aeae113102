/// A few values, one by one: what lies between passes. On the CPU; for_each_value.cuh has it on CUDA devices.
#pragma once

#include "evenkeel/config.hpp"
#include "evenkeel/device.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// The same value `count` times, as another type.
template <class From, class To>
struct RepeatValue {
  const From* from;
  To* to;
  EVENKEEL_MATH EVENKEEL_HD void operator()(std::int64_t i) const { to[i] = static_cast<To>(*from); }
};

inline namespace EVENKEEL_ISA {

/// f(i) for 0 <= i < count, each on its own. f is a struct that kernels can call.
template <class Device, class F>
  requires(!StreamDevice<Device>)
void for_each_value(const Device&, Index count, const F& f) {
  for (Index i = 0; i < count; ++i) f(i);
}

/// A pointer as the device's kernels take it; none stays none.
template <class Device, class T>
auto driver_pointer(T p) {
  if constexpr (is_none_v<T>)
    return none;
  else
    return reinterpret_cast<driver_scalar_t<Device, std::remove_pointer_t<T>>*>(p);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel::detail
