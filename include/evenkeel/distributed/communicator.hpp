/// What carries statistics between processes. A norm takes its communicator as an argument or as a type; the local one
/// costs nothing. Models: LocalCommunicator here, ThreadCommunicator, MpiCommunicator and NcclCommunicator in headers of
/// their own.
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
///
/// `count` is the same on all ranks. The memory is the host's, or the device's where the norm runs on one.
template <class C>
concept Communicator = requires(C& c, const double* send, double* values, Index count) {
  { c.rank() } -> std::convertible_to<int>;
  { c.size() } -> std::convertible_to<int>;
  c.all_gather(send, values, count);
  c.all_reduce_sum(values, count);
};

/// A communicator whose exchanges can be started and waited for apart. What a start returns is moved, never copied; its
/// wait() ends the exchange, and so does its destructor. Until then the memory is the exchange's.
template <class C>
concept OverlappingCommunicator = Communicator<C> && requires(C& c, const double* send, double* values, Index count) {
  c.start_all_gather(send, values, count).wait();
  c.start_all_reduce_sum(values, count).wait();
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

namespace detail {

/// The exchange of a communicator that cannot start one without ending it.
struct NothingToWaitFor {
  void wait() {}
};

template <Communicator C>
auto start_all_gather(C& communicator, const double* send, double* receive, Index count) {
  if constexpr (OverlappingCommunicator<C>) {
    return communicator.start_all_gather(send, receive, count);
  } else {
    communicator.all_gather(send, receive, count);
    return NothingToWaitFor();
  }
}
template <Communicator C>
auto start_all_reduce_sum(C& communicator, double* values, Index count) {
  if constexpr (OverlappingCommunicator<C>) {
    return communicator.start_all_reduce_sum(values, count);
  } else {
    communicator.all_reduce_sum(values, count);
    return NothingToWaitFor();
  }
}

/// What prepare() returns. Where it throws, refuse() completes the exchange that the other ranks are in, before that.
template <class Prepare, class Refuse>
auto prepared_or_refused(const Prepare& prepare, const Refuse& refuse) {
  try {
    return prepare();
  } catch (...) {
    refuse();
    throw;
  }
}

}  // namespace detail
}  // namespace evenkeel
