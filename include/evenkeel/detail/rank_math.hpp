/// What ranks tell each other about a channel norm, and what becomes of it. No Eigen, no CUDA header.
///
/// A forward's message holds (count, shift | delta | M2 of each channel): all channels of a rank have the same count, and
/// a count below 0, or NaN, is that of a rank whose call has failed. A backward's holds (g | g_xhat of each channel, mark),
/// to be added up; the mark is 1 for a rank whose call has failed.
#pragma once

#include "evenkeel/config.hpp"
#include "evenkeel/moments.hpp"

#include <cstdint>

namespace evenkeel::detail {

EVENKEEL_HD std::int64_t moments_message(std::int64_t channels) { return 3 * channels + 1; }
EVENKEEL_HD std::int64_t gradients_message(std::int64_t channels) { return 2 * channels + 1; }

/// The message within moments (count | shift | delta | M2, channels), whose counts are equal: from the last count on.
template <class T>
EVENKEEL_HD T* message_within(T* moments, std::int64_t channels) {
  return moments + channels - 1;
}

/// The first rank whose call has failed, or -1.
EVENKEEL_HD int failed_rank(const double* gathered, int ranks, std::int64_t channels) {
  for (int r = 0; r < ranks; ++r)
    if (!(gathered[r * moments_message(channels)] >= 0)) return r;
  return -1;
}

/// The moments of a channel over all ranks, merged in the order of the ranks: the same bits on each of them.
EVENKEEL_HD Moments<double> merged_over_ranks(const double* gathered, int ranks, std::int64_t channels,
                                              std::int64_t channel) {
  Moments<double> all;
  for (int r = 0; r < ranks; ++r) {
    const double* const message = gathered + r * moments_message(channels);
    const double* const m = message + 1 + channel;
    all = merge(all, Moments<double>{static_cast<std::int64_t>(message[0]), m[0], m[channels], m[2 * channels]});
  }
  return all;
}

}  // namespace evenkeel::detail
