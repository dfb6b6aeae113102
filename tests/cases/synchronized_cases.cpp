// BatchNorm over ranks, each a thread: ranks of unequal sizes, and without data.
#include "cases/channel_run.hpp"
#include "cases/table.hpp"
#include "evenkeel/distributed/thread_communicator.hpp"

#include <string>
#include <thread>

using namespace cases_test;

namespace {

using Eigen::Index;

struct RankResult {
  Values y, dx, dweight, dbias;
  Running running;
  std::string error;
};

// One channel, a forward and a backward with dy = x on each rank, and its running statistics after them.
template <class T>
std::vector<RankResult> run_ranks(const Case& c, const std::vector<Values>& x) {
  const ek::BatchNormOptions options{.eps = c.number("/params/eps")};
  const ek::RunningOptions running_options{.momentum = ek::NewWeight{c.number("/params/momentum")}};
  const double mean = c.values("/params/running_mean").at(0), var = c.values("/params/running_var").at(0);
  ek::ThreadGroup group(int(x.size()));
  std::vector<RankResult> results(x.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < x.size(); ++r)
    threads.emplace_back([&, r] {
      RankResult& result = results[r];
      ek::ThreadCommunicator communicator(group, int(r));
      const auto own = norms_test::matrix_of<norms_test::RowMatrix<T>>(Index(x[r].size()), 1, x[r]);
      norms_test::RowMatrix<T> y = own, dx = own;
      Eigen::Array<T, Eigen::Dynamic, 1> weight(1), dweight(1), dbias(1);
      weight(0) = T(1), dweight(0) = dbias(0) = T(0);
      ek::BatchNormSaved<T> saved;
      ek::RunningStatistics<T> running(1, running_options);
      running.mean()[0] = T(mean), running.var()[0] = T(var);
      try {
        ek::batch_norm(ek::serial, own, weight, ek::none, y, saved, options, communicator);
        running.update(saved);
        ek::batch_norm_backward(ek::serial, own, own, weight, ek::none, saved, dx, dweight, dbias,
                                ek::GradientMode::accumulate, communicator);
      } catch (const std::exception& e) {
        result.error = e.what();
        group.abort();
      }
      result.y = norms_test::values_of(y), result.dx = norms_test::values_of(dx);
      result.dweight = {double(dweight(0))}, result.dbias = {double(dbias(0))};
      result.running = {{double(running.mean()[0])}, {double(running.var()[0])}, running.num_batches_tracked};
    });
  for (std::thread& thread : threads) thread.join();
  for (const RankResult& result : results) CHECK(result.error == "");
  return results;
}

// The running statistics of all ranks are the same bits, and as `pointer` says.
void expect_running(const Case& c, const std::string& type, const std::string& pointer,
                    const std::vector<RankResult>& ranks) {
  for (const RankResult& rank : ranks) {
    expect_at(c, type, "running_mean", rank.running.mean, pointer + "/running_mean");
    expect_at(c, type, "running_var", rank.running.var, pointer + "/running_var");
    CHECK(bit_difference(rank.running.mean, ranks[0].running.mean) == "");
    CHECK(bit_difference(rank.running.var, ranks[0].running.var) == "");
  }
}

// Each value counts once, whichever rank has it: the mean is not that of the ranks' means.
void check_uneven_ranks(const Case& c) {
  const Values first = c.values("/inputs/rank0"), second = c.values("/inputs/rank1");
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    for (const bool swapped : {false, true}) {
      const auto ranks =
          swapped ? run_ranks<T>(c, {second, first}) : run_ranks<T>(c, std::vector<Values>{first, second});
      expect_at(c, type, "y", ranks[swapped ? 1 : 0].y, "/expected/y_rank0");
      expect_at(c, type, "y", ranks[swapped ? 0 : 1].y, "/expected/y_rank1");
      expect_running(c, type, "/expected", ranks);
      CHECK(ranks[0].running.batches == 1);
    }
  });
}

// A rank without data changes nothing for the others; where no rank has any, nothing changes at all.
void check_empty_ranks(const Case& c) {
  const Values data = c.values("/inputs/rank0"), nothing = c.values("/inputs/rank1");
  CHECK(nothing.empty());
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    const RankResult alone = run_ranks<T>(c, {data}).at(0);
    for (const std::size_t full : {0u, 1u}) {
      const auto ranks = run_ranks<T>(c, full == 0 ? std::vector<Values>{data, nothing} : std::vector{nothing, data});
      expect_at(c, type, "y", ranks[full].y, "/expected/y_rank0");
      CHECK(bit_difference(ranks[full].y, alone.y) == "");
      CHECK(bit_difference(ranks[full].dx, alone.dx) == "");
      CHECK(bit_difference(ranks[full].dweight, alone.dweight) == "");
      const RankResult& empty = ranks[1 - full];
      CHECK((empty.y.empty() && empty.dx.empty()));
      CHECK(empty.dweight == Values{0});
      CHECK(empty.dbias == Values{0});
      expect_running(c, type, "/expected", ranks);
      CHECK(ranks[0].running.batches == 1);
    }
    const auto all_empty = run_ranks<T>(c, {nothing, nothing});
    expect_running(c, type, "/expected/all_empty", all_empty);
    for (const RankResult& rank : all_empty) {
      CHECK(rank.running.batches == 0);
      CHECK(rank.dweight == Values{0});
      CHECK(rank.dbias == Values{0});
    }
  });
}

}  // namespace

void cases_test::add_synchronized_cases(Table& table) {
  table["sync_batch_norm.forward_train"] = check_uneven_ranks;
  table["sync_batch_norm.forward_train / backward_train"] = check_empty_ranks;
}
