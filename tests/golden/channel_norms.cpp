#include "cases/channel_run.hpp"
#include "golden/expect.hpp"
#include "support/channel_reference.hpp"

using namespace golden;
using cases_test::ChannelCase, cases_test::ChannelNorm, cases_test::ChannelResult, cases_test::Running,
    cases_test::run_channels_everywhere;

namespace {

// All arrays of the file are in the order of axes that torch counts, whatever the layout; every case is run with the
// channels in front of the positions, behind them and turned round.
template <class T, class P>
ChannelCase channel_case(const Case& c, ChannelNorm norm) {
  ChannelCase channel;
  channel.norm = norm;
  channel.samples = c.shape.at(0);
  channel.channels = c.shape.at(1);
  for (std::size_t a = 2; a < c.shape.size(); ++a) channel.positions *= c.shape[a];
  channel.groups = Eigen::Index(c.option("groups", 0));
  channel.x = rounded<T>(c.input("x"));
  channel.dy = rounded<T>(c.input("dy"));
  channel.weight = rounded<P>(c.input("weight"));
  channel.bias = rounded<P>(c.input("bias"));
  channel.eps = c.options.at("eps");
  if (c.has_input("running_mean")) channel.running = {c.input("running_mean"), c.input("running_var"), 0};
  if (c.options.count("momentum")) channel.momentum = ek::NewWeight{c.options.at("momentum")};
  return channel;
}

reference::Channels channels_of(const ChannelCase& c) {
  reference::Channels p;
  p.N = std::size_t(c.samples), p.C = std::size_t(c.channels), p.S = std::size_t(c.positions);
  p.ghost = c.norm == ChannelNorm::batch ? p.N : 1;
  p.groups = c.norm == ChannelNorm::group ? std::size_t(c.groups) : p.C;
  p.eps = c.eps;
  p.x = c.x, p.dy = c.dy, p.weight = c.weight, p.bias = c.bias;
  return p;
}

// (1 - m) * old + m * batch, the batch being the mean over samples of what each has, with n - 1 in the variance.
struct Followed {
  Values mean, var, mean_magnitude, var_magnitude;
};
Followed followed(const Case& c, const ChannelCase& channel, const reference::ChannelResult& statistics) {
  Followed f;
  const double m = c.options.at("momentum");
  const auto channels = std::size_t(channel.channels), sets = statistics.mean.size() / channels;
  for (std::size_t k = 0; k < channels; ++k) {
    double mean = 0, var = 0, size = 0;
    for (std::size_t s = 0; s < sets; ++s) {
      const std::size_t i = s * channels + k;
      const double n = statistics.count[i];
      mean += statistics.mean[i] / double(sets);
      size += std::abs(statistics.mean[i]) / double(sets);
      var += statistics.variance[i] * n / (n - 1) / double(sets);
    }
    // The mean is a sum of numbers that are up to a few spreads away from it.
    const double old_mean = channel.running.mean[k], old_var = channel.running.var[k];
    f.mean.push_back((1 - m) * old_mean + m * mean);
    f.mean_magnitude.push_back((1 - m) * std::abs(old_mean) + m * (size + std::sqrt(var)));
    f.var.push_back((1 - m) * old_var + m * var);
    f.var_magnitude.push_back((1 - m) * old_var + m * var);
  }
  return f;
}

template <ChannelNorm norm>
void check_training(const Case& c) {
  for_each_result(c, [&]<class T, class P>(Type<T>, Type<P>, const Named& results) {
    using A = ek::accumulator_t<T>;
    const ChannelCase channel = channel_case<T, P>(c, norm);
    const reference::ChannelResult exact = reference::channel_norm(channels_of(channel));
    const std::size_t values = std::size_t(channel.samples * channel.positions);
    for (const ChannelResult& result : run_channels_everywhere<T, P>(channel)) {
      expect<T>("y", result.y, results.at("y"), exact.y, exact.y_magnitude, exact.summed);
      expect<T>("dx", result.dx, results.at("dx"), exact.dx, exact.dx_magnitude, exact.summed);
      if (c.has_input("weight"))
        expect<P>("dweight", result.dweight, results.at("dweight"), exact.dweight, exact.dweight_magnitude, values);
      if (c.has_input("bias"))
        expect<P>("dbias", result.dbias, results.at("dbias"), exact.dbias, exact.dbias_magnitude, values);
      if (!c.has_input("running_mean")) continue;
      const Followed f = followed(c, channel, exact);
      const auto expect_running = [&]<class TorchType>(Type<TorchType>) {
        expect<A, TorchType>("running_mean", result.running.mean, results.at("running_mean"), f.mean, f.mean_magnitude,
                             values);
        expect<A, TorchType>("running_var", result.running.var, results.at("running_var"), f.var, f.var_magnitude,
                             values);
      };
      // InstanceNorm without weight is where torch 2.15 lets 16-bit data round the float32 running statistics: all of
      // them are numbers of the data's type there.
      if (norm == ChannelNorm::instance && !c.has_input("weight"))
        expect_running(Type<T>{});
      else
        expect_running(Type<A>{});
      CHECK(result.running.batches == 1);
    }
  });
}

// In inference the statistics are constants of the channel: InstanceNorm and BatchNorm are the same.
template <ChannelNorm norm>
void check_inference(const Case& c) {
  for_each_result(c, [&]<class T, class P>(Type<T>, Type<P>, const Named& results) {
    ChannelCase channel = channel_case<T, P>(c, norm);
    channel.inference = true;
    Values y, dx, y_magnitude, dx_magnitude;
    const auto channels = std::size_t(channel.channels);
    Values dweight(channels), dbias(channels), dweight_magnitude(channels), dbias_magnitude(channels);
    for (std::size_t i = 0; i < channel.x.size(); ++i) {
      const std::size_t k = i / std::size_t(channel.positions) % channels;
      const double mean = channel.running.mean[k], rstd = 1 / std::sqrt(channel.running.var[k] + channel.eps);
      const double weight = channel.weight.empty() ? 1 : channel.weight[k];
      const double bias = channel.bias.empty() ? 0 : channel.bias[k];
      const double xhat = (channel.x[i] - mean) * rstd, reach = (std::abs(channel.x[i]) + std::abs(mean)) * rstd;
      y.push_back(xhat * weight + bias);
      y_magnitude.push_back(reach * std::abs(weight) + std::abs(bias));
      dx.push_back(channel.dy[i] * weight * rstd);
      dx_magnitude.push_back(std::abs(dx.back()));
      dweight[k] += channel.dy[i] * xhat;
      dweight_magnitude[k] += std::abs(channel.dy[i]) * reach;
      dbias[k] += channel.dy[i];
      dbias_magnitude[k] += std::abs(channel.dy[i]);
    }
    const std::size_t values = std::size_t(channel.samples * channel.positions);
    for (const ChannelResult& result : run_channels_everywhere<T, P>(channel)) {
      expect<T>("y", result.y, results.at("y"), y, y_magnitude, 0);
      expect<T>("dx", result.dx, results.at("dx"), dx, dx_magnitude, 0);
      CHECK(result.running.mean == channel.running.mean);
      CHECK(result.running.var == channel.running.var);
      CHECK(result.running.batches == 0);
      if (!c.has_input("weight")) continue;
      expect<P>("dweight", result.dweight, results.at("dweight"), dweight, dweight_magnitude, values);
      expect<P>("dbias", result.dbias, results.at("dbias"), dbias, dbias_magnitude, values);
    }
  });
}

}  // namespace

void golden::add_channel_norms(Table& table) {
  table["batch_norm"] = check_training<ChannelNorm::batch>;
  table["batch_norm_tracking"] = check_training<ChannelNorm::batch>;
  table["batch_norm_inference"] = check_inference<ChannelNorm::batch>;
  table["group_norm"] = check_training<ChannelNorm::group>;
  table["instance_norm"] = check_training<ChannelNorm::instance>;
  table["instance_norm_tracking"] = check_training<ChannelNorm::instance>;
  table["instance_norm_inference"] = check_inference<ChannelNorm::instance>;
}
