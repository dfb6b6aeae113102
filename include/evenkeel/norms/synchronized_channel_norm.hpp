/// BatchNorm over the data of all ranks of a communicator: each call in two halves, with one exchange between them.
///
///     forward    every rank's (count, shift | delta | M2 of each channel) is gathered, and merged in the order of the ranks
///     backward   (sum of dy | sum of dy * xhat of each channel) is added up, and divided by the count of all ranks
///
/// A rank whose call fails before the exchange completes it with an invalid mark, so that no rank waits in vain, and then
/// throws its own error; the others throw RankError. On all of them nothing has changed but scratch.
#pragma once

#include "evenkeel/detail/rank_math.hpp"
#include "evenkeel/distributed/communicator.hpp"
#include "evenkeel/distributed/pending.hpp"
#include "evenkeel/norms/channel_norm.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// The channels of a call, for the message of a rank on which it fails: those of its parameters, which all ranks share,
/// or of x where there are none. 0 where nobody can tell.
template <class X, class Weight, class Bias>
Index channels_of(const X& x, const Weight& weight, const Bias& bias, const Axes& axis) {
  if constexpr (!is_none_v<Weight>) {
    return layout_of(weight).size();
  } else if constexpr (!is_none_v<Bias>) {
    return layout_of(bias).size();
  } else {
    try {
      RowArguments arguments("batch_norm");
      arguments.reference("x", x, axis);
      return arguments.grid().length;
    } catch (const ShapeError&) {
      return 0;
    }
  }
}

/// What one exchange takes.
struct RankMessages {
  Index channels;
  int ranks;
  Index moments() const { return moments_message(channels); }
  Index gradients() const { return gradients_message(channels); }
  Index room() const { return room_of_ranks(channels, ranks); }
};

/// Completes the exchange of a forward, or of a backward, for a rank that has nothing to say in it.
template <Communicator C>
void refuse_moments(C& communicator, const RankMessages& messages) {
  std::vector<double> values(static_cast<std::size_t>((messages.ranks + 1) * messages.moments()));
  values[0] = -1;
  start_all_gather(communicator, values.data(), values.data() + messages.moments(), messages.moments()).wait();
}
template <Communicator C>
void refuse_gradients(C& communicator, const RankMessages& messages) {
  std::vector<double> values(static_cast<std::size_t>(messages.gradients()));
  values.back() = 1;
  start_all_reduce_sum(communicator, values.data(), messages.gradients()).wait();
}

/// Throws where x has other channels than all ranks know of.
inline void check_channels_of_ranks(const char* function, const ChannelGrid& grid, const RankMessages& messages) {
  if (grid.channels != messages.channels)
    throw_shape_error(function, "x has ", grid.channels, " channels, the layer has ", messages.channels);
}

/// The first half of a forward. `channels` is what all ranks know of them. Returns an ExchangeStep, whose second half
/// writes y and saved.
template <class Activation, class Device, class X, class Residual, class Mask, class Weight, class Bias, class Y,
          class Saved, Communicator C>
auto start_synchronized_norm(const char* function, const Device& device, const X& x, const Residual& residual,
                             const Mask& mask, const Weight& weight, const Bias& bias, Y& y, Saved& saved,
                             const ChannelSpec& spec, Index channels, C& communicator) {
  require_device<Device>();
  const RankMessages messages{channels, communicator.size()};
  check_communicator(function, device, messages, communicator);
  const auto prepare = [&] {
    if (spec.per_sample) throw_shape_error(function, "statistics over ranks and over ghost batches exclude each other");
    const auto call = channel_forward_call<Activation>(function, x, residual, mask, weight, bias, y, spec);
    check_channels_of_ranks(function, call.grid(), messages);
    saved.make_room(device, call.grid(), call.shape.groups, messages.room());
    channel_moments(device, call, saved, messages);
    return call;
  };
  const auto call = prepared_or_refused(prepare, [&] { refuse_forward(device, saved, messages, communicator); });
  const auto [send, receive] = moments_exchange(device, saved, messages);
  auto request = start_all_gather(communicator, send, receive, messages.moments());
  return ExchangeStep(std::move(request), [function, &device, &saved, spec, call, messages] {
    conclude_forward(function, device, call, saved, spec, messages);
  });
}

/// The first half of a backward.
template <class Activation, class Device, class Dy, class X, class Residual, class Mask, class Weight, class Bias,
          class Saved, class Dx, class Dresidual, class Dweight, class Dbias, Communicator C>
auto start_synchronized_norm_backward(const char* function, const Device& device, const Dy& dy, const X& x,
                                      const Residual& residual, const Mask& mask, const Weight& weight,
                                      const Bias& bias, Saved& saved, Dx& dx, Dresidual& dresidual, Dweight& dweight,
                                      Dbias& dbias, GradientMode mode, Index channels, C& communicator) {
  require_device<Device>();
  const RankMessages messages{channels, communicator.size()};
  check_communicator(function, device, messages, communicator);
  const auto prepare = [&] {
    const auto call = channel_backward_call<Activation>(function, dy, x, residual, mask, weight, bias, saved, dx,
                                                        dresidual, dweight, dbias, true);
    check_channels_of_ranks(function, call.sums.grid, messages);
    saved.make_room(device, call.sums.grid, saved.call.groups, messages.room());
    channel_gradient_sums(device, call, saved, messages);
    return call;
  };
  const auto call = prepared_or_refused(prepare, [&] { refuse_backward(device, saved, messages, communicator); });
  double* const message = gradients_exchange(device, saved, messages);
  auto request = start_all_reduce_sum(communicator, message, messages.gradients());
  return ExchangeStep(std::move(request), [function, &device, &saved, call, mode, messages] {
    conclude_backward(function, device, call, saved, mode, messages);
  });
}

// What a CPU does of the halves. CUDA devices have theirs in detail/channel_ranks_cuda.cuh.

template <CpuDevice Device, class C>
void check_communicator(const char*, const Device&, const RankMessages&, C& communicator) {
  static_assert(
      !requires { communicator.stream(); },
      "evenkeel: this communicator's messages lie in a CUDA device's memory, and the norm runs on the CPU");
}

template <CpuDevice Device, class Saved, class C>
void refuse_forward(const Device&, Saved&, const RankMessages& messages, C& communicator) {
  refuse_moments(communicator, messages);
}
template <CpuDevice Device, class Saved, class C>
void refuse_backward(const Device&, Saved&, const RankMessages& messages, C& communicator) {
  refuse_gradients(communicator, messages);
}

template <CpuDevice Device, class Call, class Saved>
void channel_moments(const Device& device, const Call& call, Saved& saved, const RankMessages&) {
  channel_sums(device, call.sums(saved.sums.data()), call.bytes());
}
/// What is sent, and the place for what all ranks send.
template <CpuDevice Device, class Saved>
std::pair<const double*, double*> moments_exchange(const Device&, Saved& saved, const RankMessages& messages) {
  double* const kept = saved.sums.data();
  return {message_within(kept, messages.channels), kept + 4 * messages.channels};
}
template <CpuDevice Device, class Call, class Saved>
void conclude_forward(const char* function, const Device& device, const Call& call, Saved& saved,
                      const ChannelSpec& spec, const RankMessages& messages) {
  const Index channels = messages.channels;
  double* const kept = saved.sums.data();
  const double* const gathered = kept + 4 * channels;
  if (const int failed = failed_rank(gathered, messages.ranks, channels); failed >= 0)
    throw RankError(error_text(function, "the call of rank ", failed, " failed, of which its own error says more"));
  for (Index c = 0; c < channels; ++c) {
    const Moments<double> all = merged_over_ranks(gathered, messages.ranks, channels, c);
    const double merged[4] = {static_cast<double>(all.count), all.shift, all.delta, all.M2};
    for (Index k = 0; k < 4; ++k) kept[k * channels + c] = merged[k];
  }
  check_count(function, call.arguments, spec.unit, static_cast<std::int64_t>(kept[0]));
  saved.begin(device, call.record(spec, true));
  const auto sums = call.sums(kept);
  for (Index c = 0; c < channels; ++c) settle_group<false>(sums, saved, call.eps, 0, c);
  channel_write(device, call.write(saved.known.data()), call.bytes());
}

template <CpuDevice Device, class Call, class Saved>
void channel_gradient_sums(const Device& device, const Call& call, Saved& saved, const RankMessages& messages) {
  const Index channels = messages.channels;
  double* const kept = saved.sums.data();  // (g | g_xhat, channels), which stay this rank's own, then the message
  channel_sums(device, with_known(call.sums, spread_statistics(call.sums.grid, saved) + 5 * channels, kept),
               call.bytes);
  std::copy_n(kept, 2 * channels, kept + 2 * channels);
  kept[4 * channels] = 0;
}
template <CpuDevice Device, class Saved>
double* gradients_exchange(const Device&, Saved& saved, const RankMessages& messages) {
  return saved.sums.data() + 2 * messages.channels;
}
template <CpuDevice Device, class Call, class Saved>
void conclude_backward(const char* function, const Device& device, const Call& call, Saved& saved, GradientMode mode,
                       const RankMessages& messages) {
  const Index channels = messages.channels;
  const ChannelGrid& grid = call.sums.grid;
  double* const kept = saved.sums.data();
  double* const total = kept + 2 * channels;
  if (const double failed = total[2 * channels]; failed != 0)
    throw RankError(error_text(function, "the calls of ", static_cast<int>(failed), " of ", messages.ranks,
                               " ranks failed, of which their own errors say more"));
  const auto weight = std::get<0>(call.sums.parameters);
  for (Index c = 0; c < channels; ++c) put_gradient_means(grid, weight, total, mean_count(saved, c, 0), 0, c, saved);
  put_channel_gradients(call.dweight, call.dbias, kept, total, grid, mode);
  const auto* const known = saved.known.data();
  channel_write(device, with_known(call.write, known), call.bytes);
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
