/// What carries statistics between processes. A norm takes its communicator as an argument; the local one costs nothing.
#pragma once

#include "evenkeel/device.hpp"

#include <algorithm>
#include <concepts>
#include <type_traits>

namespace evenkeel {

/// A communicator: `size` ranks, each of which makes the same calls in the same order.
///
///     all_gather(send, receive, count)   receive (size, count) gets every rank's `count` doubles, by rank
///     all_reduce_sum(values, count)      each of the `count` doubles becomes its sum over the ranks, the same bits on all
template <class C>
concept Communicator = requires(C& c, const double* send, double* values, Index count) {
  { c.rank() } -> std::convertible_to<int>;
  { c.size() } -> std::convertible_to<int>;
  c.all_gather(send, values, count);
  c.all_reduce_sum(values, count);
};

/// One process: the statistics of its data are those of all data.
struct LocalCommunicator {
  static constexpr int rank() { return 0; }
  static constexpr int size() { return 1; }
  static void all_gather(const double* send, double* receive, Index count) { std::copy_n(send, count, receive); }
  static void all_reduce_sum(double*, Index) {}
};

template <class C>
inline constexpr bool is_local_v = std::is_same_v<std::remove_cvref_t<C>, LocalCommunicator>;

}  // namespace evenkeel
