// One forward and backward of a norm over channels (BatchNorm, GroupNorm, InstanceNorm) over given numbers, on any
// device and with the channel axis in any place, with every output full of NaN before.
#pragma once

#include "cases/case.hpp"
#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"

#include <Eigen/Core>

#include <cstdint>
#include <vector>

namespace cases_test {

namespace ek = evenkeel;

enum class ChannelNorm { batch, group, instance };

/// Running statistics; without numbers there are none.
struct Running {
  Values mean, var;
  std::int64_t batches = 0;
};

struct ChannelCase {
  Eigen::Index samples = 0, channels = 0, positions = 1;
  Values x, dy, weight, bias;  // x, dy: (samples, channels, positions); weight and bias may be empty
  double eps = 0;
  ChannelNorm norm = ChannelNorm::batch;
  Eigen::Index groups = 0;  // of group norm
  Running running;
  ek::Momentum momentum = ek::NewWeight{0.1};
  bool inference = false;  // with `running` in the place of the data's own statistics
};

struct ChannelResult {
  Values y, dx, dweight, dbias, mean, rstd;  // mean and rstd per sample and group; none in inference
  Running running;
};

// Where the channel axis lies: (samples, channels, positions), (samples, positions, channels) or turned round:
// (channels, samples, positions) for BatchNorm and (positions, channels, samples) for the norms that know samples.
enum class ChannelArrangement { middle, last, turned };
inline constexpr ChannelArrangement channel_arrangements[] = {ChannelArrangement::middle, ChannelArrangement::last,
                                                              ChannelArrangement::turned};

// T is the type of the data, P that of the parameters. Compiled once for each, in channel_run_<types>.cpp.
template <class T, class P, class Device>
ChannelResult run_channels(const Device& device, const ChannelCase& c, ChannelArrangement arrangement);

inline void check_same_bits(const ChannelResult& got, const ChannelResult& expected) {
  CHECK(bit_difference(got.y, expected.y) == "");
  CHECK(bit_difference(got.dx, expected.dx) == "");
  CHECK(bit_difference(got.dweight, expected.dweight) == "");
  CHECK(bit_difference(got.dbias, expected.dbias) == "");
  CHECK(bit_difference(got.mean, expected.mean) == "");
  CHECK(bit_difference(got.rstd, expected.rstd) == "");
  CHECK(bit_difference(got.running.mean, expected.running.mean) == "");
  CHECK(bit_difference(got.running.var, expected.running.var) == "");
  CHECK(got.running.batches == expected.running.batches);
}

// The results in all arrangements, each the same in ten runs and on every number of threads.
template <class T, class P = T>
std::vector<ChannelResult> run_channels_everywhere(const ChannelCase& c) {
  std::vector<ChannelResult> results;
  for (const auto arrangement : channel_arrangements) {
    INFO("arrangement " << int(arrangement));
    results.push_back(run_channels<T, P>(ek::serial, c, arrangement));
    for (int repetition = 1; repetition < 10; ++repetition)
      check_same_bits(run_channels<T, P>(ek::serial, c, arrangement), results.back());
    for (const int threads : support::thread_counts)
      check_same_bits(run_channels<T, P>(support::ThreadPool(threads).device(), c, arrangement), results.back());
  }
  return results;
}

inline void expect_at(const Case& c, const std::string& type, const std::string& name, const Values& got,
                      const std::string& pointer) {
  INFO(name << " in " << type);
  CHECK(difference(got, c.values(pointer), c.limit(type, name)) == "");
}

// The results that a case lists under their usual names.
inline void expect_listed(const Case& c, const std::string& type, const ChannelResult& result) {
  const auto listed = [&](const char* name, const Values& got) {
    const std::string pointer = std::string("/expected/") + name;
    if (c.has(pointer)) expect_at(c, type, name, got, pointer);
  };
  listed("y", result.y);
  listed("dx", result.dx);
  listed("dgamma", result.dweight);
  listed("dbeta", result.dbias);
  listed("running_mean", result.running.mean);
  listed("running_var", result.running.var);
}

}  // namespace cases_test
