/// What stands where there is no tensor.
#pragma once

#include <type_traits>

namespace evenkeel {

/// No weight, no bias, nothing saved: `ek::layer_norm(device, x, ek::none, ek::none, y, saved);`
struct None {};
inline constexpr None none{};

template <class T>
inline constexpr bool is_none_v = std::is_same_v<std::remove_cvref_t<T>, None>;

}  // namespace evenkeel
