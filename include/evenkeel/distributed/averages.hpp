/// Averages that each rank has taken of its own batches, as one: what a calibration is computed from.
#pragma once

#include "evenkeel/distributed/communicator.hpp"
#include "evenkeel/error.hpp"
#include "evenkeel/taper/ema.hpp"

#include <array>
#include <cstddef>
#include <vector>

namespace evenkeel::detail {

/// The values of N averages over all ranks, the same bits on each of them, in one message. states() returns this rank's N
/// EmaState; where it throws, all ranks throw. Each batch of each rank counts alike, and a rank without any does not.
template <std::size_t N, Communicator C, class States>
std::array<double, N> averages_over_ranks(const char* function, C& communicator, const States& states) {
  constexpr Index count = 2 * static_cast<Index>(N) + 1;  // sum and weight of each, and a mark
  const Index ranks = communicator.size();
  std::vector<double> gathered(static_cast<std::size_t>((ranks + 1) * count));
  double* const own = gathered.data() + ranks * count;
  const auto exchange = [&] { start_all_gather(communicator, own, gathered.data(), count).wait(); };
  const auto fill = [&] {
    const std::array<EmaState, N> all = states();
    for (std::size_t i = 0; i < N; ++i) own[2 * i] = all[i].sum, own[2 * i + 1] = all[i].weight;
    return 0;
  };
  prepared_or_refused(fill, [&] {
    own[count - 1] = 1;
    exchange();
  });
  exchange();
  std::array<double, N> values{};
  for (std::size_t i = 0; i < N; ++i) {
    double sum = 0, weight = 0;
    for (Index r = 0; r < ranks; ++r) {
      const double* const message = gathered.data() + r * count;
      if (message[count - 1] != 0)
        throw RankError(error_text(function, "the call of rank ", r, " failed, of which its own error says more"));
      sum += message[2 * i];
      weight += message[2 * i + 1];
    }
    if (!(weight > 0)) throw_state_error(function, "got no batches on any rank, expected 1 or more");
    values[i] = sum / weight;
  }
  return values;
}

}  // namespace evenkeel::detail
