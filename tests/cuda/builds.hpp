// What the three builds of an emulator test run: the scalars of data and parameters, the orders of threads.
#pragma once

#include "evenkeel/cuda.hpp"
#include "support/sanitizers.hpp"

#include <cstdint>
#include <tuple>
#include <vector>

namespace cuda_test {

// What a build can afford: the sanitizers look for other faults than wrong numbers, and are slow.
enum class Build { plain, address, thread };
#if defined(__SANITIZE_THREAD__)
inline constexpr Build build = Build::thread;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr Build build = Build::address;
#else
inline constexpr Build build = Build::plain;
#endif

template <class T_, class W_>
struct Scalars {
  using T = T_;
  using W = W_;
};
using Floats = Scalars<float, float>;
using Halves = Scalars<Eigen::half, float>;
using Brains = Scalars<Eigen::bfloat16, Eigen::bfloat16>;
using Doubles = Scalars<double, double>;
#if defined(__SANITIZE_THREAD__)
using DataScalars = std::tuple<Floats>;
using WideScalars = DataScalars;
#else
using DataScalars = std::tuple<Floats, Halves, Brains, Doubles>;
using WideScalars = std::tuple<Floats, Doubles>;  // half the time to compile
using SmallScalars = std::tuple<Halves, Brains>;
#endif

using emulator::Order;
// Another order of threads moves no address.
inline const std::vector<Order> orders = build == Build::thread ? std::vector{Order::forward, Order::skew}
                                         : build == Build::address
                                             ? std::vector{Order::forward, Order::random}
                                             : std::vector{Order::forward, Order::reverse, Order::random, Order::skew};
inline void use_order(Order order, std::uint64_t seed = 1) {
  emulator::options() = {.order = order, .seed = seed, .resident = order == Order::forward ? 1u : 2u};
}

}  // namespace cuda_test
