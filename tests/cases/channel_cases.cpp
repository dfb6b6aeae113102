#include "cases/channel_run.hpp"
#include "cases/table.hpp"

#include <algorithm>
#include <cmath>

using namespace cases_test;

namespace {

ChannelCase channel_case(const Case& c) {
  const Tensor x = c.tensor("/inputs/x");
  ChannelCase channel;
  channel.samples = x.shape.at(0);
  channel.channels = x.shape.at(1);
  channel.x = x.values;
  channel.dy = c.values("/inputs/dy");
  channel.weight = c.values("/params/gamma");
  channel.bias = c.values("/params/beta");
  channel.eps = c.number("/params/eps");
  return channel;
}

// dx adds up to nothing in a channel, and is orthogonal to xhat but for what eps takes.
void check_projections(const ChannelCase& channel, const ChannelResult& result, double epsilon) {
  for (std::size_t k = 0; k < std::size_t(channel.channels); ++k) {
    double sum = 0, along_xhat = 0, largest = 0, dy_along_xhat = 0;
    for (std::size_t at = k; at < channel.x.size(); at += std::size_t(channel.channels)) {
      const double xhat = (channel.x[at] - result.mean[k]) * result.rstd[k];
      sum += result.dx[at];
      along_xhat += result.dx[at] * xhat;
      dy_along_xhat += channel.dy[at] * xhat;
      largest = std::max(largest, std::abs(result.dx[at]));
    }
    // xhat has the mean square 1 - eps * rstd^2, which is left of the projection.
    const double left =
        std::abs(channel.weight[k]) * std::pow(result.rstd[k], 3) * channel.eps * std::abs(dy_along_xhat);
    const double rounding = 4 * double(channel.samples) * epsilon * largest;
    CHECK(std::abs(sum) <= rounding);
    CHECK(std::abs(along_xhat) <= 1.01 * left + 2 * rounding);
  }
}

void check_training(const Case& c) {
  CHECK(c.boolean("/params/training"));
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    const ChannelCase channel = channel_case(c);
    for (const ChannelResult& result : run_channels_everywhere<T>(channel)) {
      expect_listed(c, type, result);
      check_projections(channel, result, epsilon_of<T>());
    }
  });
}

}  // namespace

void cases_test::add_channel_cases(Table& table) { table["batch_norm.backward_train"] = check_training; }
