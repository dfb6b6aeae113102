/// The halves of a BatchNorm over ranks on a CUDA device. Everything is put into the stream, the exchange too, so the host
/// knows of no rank's failure but its own: on the others what is written is NaN, and running statistics and the gradients
/// of parameters stay.
#pragma once

#include "evenkeel/detail/channel_pass_cuda.cuh"
#include "evenkeel/detail/rank_kernels.cuh"
#include "evenkeel/norms/synchronized_channel_norm.hpp"

#include <tuple>
#include <utility>

namespace evenkeel::detail::inline EVENKEEL_ISA {

template <StreamDevice Device, class C>
void check_communicator(const char* function, const Device& device, const RankMessages&, C& communicator) {
  static_assert(
      requires { communicator.stream(); },
      "evenkeel: ranks on CUDA devices need a communicator of device memory, which has a stream()");
  if (communicator.stream() != device.stream())
    throw_shape_error(function, "the communicator's stream is not the device's");
}

/// Without room there is no message to send: saved.reserve is called on all ranks, or on none.
template <StreamDevice Device, class Saved, class C>
void refuse_forward(const Device& device, Saved& saved, const RankMessages& messages, C& communicator) {
  if (saved.sums.size() < messages.room()) return;
  double* const message = saved.sums.data();
  check_cuda(
      cudaMemsetAsync(message, 0xff, static_cast<std::size_t>(messages.moments()) * sizeof(double), device.stream()),
      "batch_norm", "cudaMemsetAsync");  // NaN
  communicator.all_gather(message, message + 4 * messages.channels, messages.moments());
}
template <StreamDevice Device, class Saved, class C>
void refuse_backward(const Device& device, Saved& saved, const RankMessages& messages, C& communicator) {
  if (saved.sums.size() < messages.room()) return;
  double* const message = saved.sums.data() + 2 * messages.channels;
  check_cuda(
      cudaMemsetAsync(message, 0xff, static_cast<std::size_t>(messages.gradients()) * sizeof(double), device.stream()),
      "batch_norm", "cudaMemsetAsync");  // NaN
  communicator.all_reduce_sum(message, messages.gradients());
}

/// This rank's moments to scratch; its own statistics, which come with them, serve nobody.
template <StreamDevice Device, class Call, class Saved>
void channel_moments(const Device& device, const Call& call, Saved& saved, const RankMessages&) {
  set_moments(device, call.sums(nullptr), saved, call.shape.groups, call.eps, saved.sums.data(), saved.known.data());
}
template <StreamDevice Device, class Saved>
std::pair<const double*, double*> moments_exchange(const Device&, Saved& saved, const RankMessages& messages) {
  double* const moments = saved.sums.data();
  return {message_within(moments, messages.channels), moments + 4 * messages.channels};
}
template <StreamDevice Device, class Call, class Saved>
void conclude_forward(const char*, const Device& device, const Call& call, Saved& saved, const ChannelSpec& spec,
                      const RankMessages& messages) {
  using A = typename Saved::Scalar;
  const Index channels = messages.channels;
  saved.begin(device, call.record(spec, true));
  A* const statistics = saved.statistics.data();
  const double* const gathered = saved.sums.data() + 4 * channels;
  launch(&merge_ranks_kernel<A>, between_shape(channels), device.stream(), gathered, messages.ranks,
         static_cast<std::int64_t>(channels), call.eps, saved.moments_data(), statistics);
  run_channels<true>(device, device_channels(call.write(statistics), 1, statistics, nullptr));
}

template <StreamDevice Device, class Call, class Saved>
void channel_gradient_sums(const Device& device, const Call& call, Saved& saved, const RankMessages& messages) {
  using A = typename Saved::Scalar;
  const Index channels = messages.channels;
  A* const parts = saved.known.data() + parts_offset(channels);
  const A* const statistics = saved.statistics.data();
  const Index count = run_channels<false>(device, device_channels(call.sums, 1, statistics, parts));
  double* const own = saved.sums.data();
  launch(&rank_sums_kernel<A>, between_shape(32 * channels), device.stream(), static_cast<const A*>(parts),
         static_cast<std::int64_t>(count), static_cast<std::int64_t>(channels), own, own + 2 * channels);
}
template <StreamDevice Device, class Saved>
double* gradients_exchange(const Device&, Saved& saved, const RankMessages& messages) {
  return saved.sums.data() + 2 * messages.channels;
}
template <StreamDevice Device, class Call, class Saved>
void conclude_backward(const char*, const Device& device, const Call& call, Saved& saved, GradientMode mode,
                       const RankMessages& messages) {
  using A = typename Saved::Scalar;
  const Index channels = messages.channels;
  auto* const weight = pointer_or_null<const A>(std::get<0>(call.sums.parameters));
  auto* const dweight = pointer_or_null<A>(call.dweight);
  auto* const dbias = pointer_or_null<A>(call.dbias);
  using W = std::remove_cvref_t<decltype(*weight)>;
  using Dw = std::remove_cvref_t<decltype(*dweight)>;
  using Db = std::remove_cvref_t<decltype(*dbias)>;
  A* const known = saved.known.data();
  const double* const own = saved.sums.data();
  const RankGradientStep<A, W, Dw, Db> step{own,
                                            own + 2 * channels,
                                            channels,
                                            saved.moments_data(),
                                            saved.statistics.data(),
                                            known,
                                            weight,
                                            dweight,
                                            dbias,
                                            mode == GradientMode::accumulate};
  launch(&rank_gradient_kernel<A, W, Dw, Db>, between_shape(channels), device.stream(), step);
  run_channels<true>(device, device_channels(call.write, 1, static_cast<const A*>(known), nullptr));
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
