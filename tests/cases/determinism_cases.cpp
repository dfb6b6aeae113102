// The same bits in every run and on every number of threads, and sums in parts that meet each part once.
#include "cases/channel_run.hpp"
#include "cases/row_run.hpp"
#include "cases/table.hpp"
#include "cases/weight_run.hpp"

#include <cmath>

using namespace cases_test;

namespace {

using Eigen::Index;

// The same bits in every run and on every number of threads.
void check_determinism(const Case& c) {
  CHECK(c.text("/expected/property") == "bitwise equal over runs and CPU thread counts");
  constexpr int runs = 2;  // on each of the pools, and one of the serial device
  for_each_type(c, [&]<class T>(Type<T>, const std::string&) {
    RowCase row = row_case(c);
    const Values ramp = [&] {
      Values v;
      for (Index i = 0; i < row.length; ++i) v.push_back(0.5 + double(i) / 64);
      return v;
    }();
    row.weight = ramp;
    ChannelCase channel;
    channel.samples = row.rows;
    channel.channels = row.length;
    channel.x = row.x;
    channel.dy = row.dy;
    channel.weight = channel.bias = ramp;
    channel.eps = row.eps;
    channel.running = {Values(ramp.size(), 0), Values(ramp.size(), 1), 0};
    RowCase layer = row;
    layer.bias = ramp;
    for (const Arrangement arrangement : {Arrangement::along, Arrangement::across}) {
      const RowResult layer_result = run<T, LayerNormUnderTest>(ek::serial, layer, arrangement);
      const RowResult rms_result = run<T, RmsNormUnderTest>(ek::serial, row, arrangement);
      const auto channel_arrangement =
          arrangement == Arrangement::along ? ChannelArrangement::last : ChannelArrangement::turned;
      const ChannelResult channel_result = run_channels<T, T>(ek::serial, channel, channel_arrangement);
      for (const int threads : {1, 2, 3, 8, 16}) {
        INFO(threads << " threads");
        const support::ThreadPool pool(threads);
        for (int i = 0; i < runs; ++i) {
          check_same_bits(run<T, LayerNormUnderTest>(pool.device(), layer, arrangement), layer_result);
          check_same_bits(run<T, RmsNormUnderTest>(pool.device(), row, arrangement), rms_result);
          check_same_bits(run_channels<T, T>(pool.device(), channel, channel_arrangement), channel_result);
        }
      }
    }
  });
}

// A sum in parts meets each part once: rows of ones, and channels of 0 and 2 in turn, on 1 to 16 threads.
void check_parallel_sums(const Case& c) {
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    const Values counts = c.values("/inputs/n"), norms = c.values("/expected/norm");
    for (std::size_t k = 0; k < counts.size(); ++k) {
      const auto n = Index(counts[k]);
      INFO("n " << n);
      const norms_test::RowMatrix<T> x = norms_test::RowMatrix<T>::Ones(1, n);
      auto y = x;
      ChannelCase alternating;
      alternating.samples = n;
      alternating.channels = 1;
      for (Index i = 0; i < n; ++i) alternating.x.push_back(i % 2 == 0 ? 0 : 2);
      alternating.eps = 1e-5;
      alternating.running = {{0}, {1}, 0};
      alternating.momentum = ek::NewWeight{1};
      for (int threads = 1; threads <= 16; ++threads) {
        const support::ThreadPool pool(threads);
        const int repetitions = threads <= 4 ? 7 : 6;  // 100 of all
        const OnesResult w = run_weight_norm_of_ones<T>(pool.device(), n, repetitions);
        expect(c, type, "norm", {w.norm}, {norms.at(k)});
        expect(c, type, "w", {w.least, w.most}, Values(2, 1 / std::sqrt(double(n))));
        for (int repetition = 0; repetition < repetitions; ++repetition) {
          const double eps = repetition % 2 == 0 ? 0 : 0x1p-40;
          y.setConstant(norms_test::nan_of<T>());
          ek::rms_norm(pool.device(), x, ek::none, y, ek::none, {.eps = eps});
          expect(c, type, "y", {double(y.minCoeff()), double(y.maxCoeff())}, Values(2, c.number("/expected/rms_y")));
        }
        if (n % 2 != 0) continue;
        for (int repetition = 0; repetition < repetitions; ++repetition) {
          const ChannelResult step = run_channels<T, T>(pool.device(), alternating, ChannelArrangement::middle);
          CHECK(step.running.mean.at(0) == c.number("/expected/running_mean"));
          expect(c, type, "running_var", step.running.var, {double(n) / double(n - 1)});
          if (n == 40000) expect(c, type, "running_var", step.running.var, c.values("/expected/running_var_n40000"));
        }
      }
    }
  });
}

}  // namespace

void cases_test::add_determinism_cases(Table& table) {
  table["layer_norm.backward, rms_norm.backward, batch_norm forward/backward"] = check_determinism;
  table["weight_norm, rms_norm, any reduction on a thread pool"] = check_parallel_sums;
}
