// BatchNorm over ranks, each a thread: what one process makes of the joined data, with the same statistics on all.
#include "distributed/rank_checks.hpp"
#include "evenkeel/distributed/thread_communicator.hpp"
#include "support/catch.hpp"

#include <atomic>
#include <mutex>
#include <thread>

using namespace distributed_test;

namespace {

// A thread's communicator that counts what it is asked for.
struct Counted : ek::ThreadCommunicator {
  std::atomic<long>*messages = nullptr, *values = nullptr;

  Request start_all_gather(const double* send, double* receive, Index count) {
    ++*messages, *values += count;
    return ThreadCommunicator::start_all_gather(send, receive, count);
  }
  Request start_all_reduce_sum(double* sums, Index count) {
    ++*messages, *values += count;
    return ThreadCommunicator::start_all_reduce_sum(sums, count);
  }
};
// One with only what the concept asks for.
struct Plain {
  Counted to;
  int rank() const { return to.rank(); }
  int size() const { return to.size(); }
  void all_gather(const double* send, double* receive, Index count) { to.all_gather(send, receive, count); }
  void all_reduce_sum(double* sums, Index count) { to.all_reduce_sum(sums, count); }
};
static_assert(ek::Communicator<Plain> && !ek::OverlappingCommunicator<Plain>);
static_assert(ek::OverlappingCommunicator<Counted> && ek::OverlappingCommunicator<ek::ThreadCommunicator>);

std::atomic<long> messages = 0, values = 0;  // of all ranks, since on_ranks began

// Calls f(communicator) in a thread for each rank; what it returns, joined.
template <class F>
std::string on_ranks(int ranks, const F& f) {
  messages = values = 0;
  ek::ThreadGroup group(ranks);
  std::vector<std::thread> threads;
  std::vector<std::string> wrong(std::size_t(ranks), "");
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        wrong[std::size_t(r)] = f(Counted{ek::ThreadCommunicator(group, r), &messages, &values});
      } catch (const std::exception& e) {
        wrong[std::size_t(r)] = "rank " + std::to_string(r) + " throws " + e.what();
        group.abort();
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& w : wrong) all += w;
  return all;
}

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

TEST_CASE("batch_norm over ranks equals one process on the joined data", "[distributed]") {
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (const Shards& shards : all_shards(ranks)) {
      const auto check = [&]<class T>(T) {
        return on_ranks(ranks, [&](auto communicator) {
          Errors errors;
          return check_shards<T>(communicator, shards, errors);
        });
      };
      CHECK(check(float()) == "");
      CHECK(check(double()) == "");
    }
}

TEST_CASE("a call that fails on one rank fails on all, and changes nothing", "[distributed]") {
  for (int ranks = 1; ranks <= 3; ++ranks) CHECK(on_ranks(ranks, [](auto c) { return check_failures(c); }) == "");
}

TEST_CASE("one value over all ranks is an error on all of them, none is not", "[distributed]") {
  CHECK(on_ranks(2, [](auto c) { return check_counts(c); }) == "");
}

TEST_CASE("training exchanges one message each way, inference and frozen statistics none", "[distributed]") {
  const auto sent = [&](bool training, auto tracking) {
    const std::string wrong = on_ranks(3, [&](auto communicator) -> std::string {
      ek::SyncBatchNorm<float, Counted> norm(communicator, channels, {}, {}, ek::Affine::weight_and_bias, tracking);
      Data<float> x = normal_data<float>(2, 1, 0, 1), y = x;
      norm.training = training;
      norm.forward(ek::serial, x, y);
      norm.backward(ek::serial, y, x, y);
      ek::Pending pending = norm.start_forward(ek::serial, x, y);
      pending.finish();
      if (norm.training) return pending.finished() ? "" : "not finished";
      norm.refuse_forward();
      if (tracking == ek::Tracking::on) norm.refuse_backward();
      return "";
    });
    CHECK(wrong == "");
    return std::pair(messages.load(), values.load());
  };
  CHECK(sent(true, ek::Tracking::on) == std::pair(3 * 3L, 3 * (2 * (3 * channels + 1) + 2 * channels + 1)));
  CHECK(sent(false, ek::Tracking::on) == std::pair(0L, 0L));
}

TEST_CASE("without parameters the channels of a failed call are those of x", "[distributed]") {
  const std::string wrong = on_ranks(2, [](auto communicator) -> std::string {
    Matrix x = Matrix::Random(4, 3), y = x, other(3, 3);
    ek::BatchNormSaved<float> saved;
    try {
      ek::batch_norm(ek::serial, x, ek::none, ek::none, communicator.rank() == 1 ? other : y, saved, {}, communicator);
    } catch (const ek::ShapeError&) {
      return communicator.rank() == 1 ? "" : "rank 0 throws ShapeError";
    } catch (const ek::RankError& e) {
      const std::string expected = "batch_norm: the call of rank 1 failed, of which its own error says more";
      return communicator.rank() == 0 && e.what() == expected ? "" : e.what();
    }
    return "nothing is thrown";
  });
  CHECK(wrong == "");
}

TEST_CASE("statistics of ranks are not taken for those of one process", "[distributed]") {
  ek::ThreadGroup group(1);
  ek::ThreadCommunicator communicator(group, 0);
  Matrix x = Matrix::Random(4, 3), y = x, dx = x;
  ek::BatchNormSaved<float> saved;
  ek::batch_norm(ek::serial, x, ek::none, ek::none, y, saved, {}, communicator);
  CHECK_THROWS_WITH(ek::batch_norm_backward(ek::serial, y, x, ek::none, saved, dx, ek::none, ek::none),
                    "batch_norm_backward: saved comes from a forward over ranks, expected their communicator");
  ek::batch_norm(ek::serial, x, ek::none, ek::none, y, saved);
  CHECK_THROWS_WITH(ek::batch_norm_backward(ek::serial, y, x, ek::none, ek::none, saved, dx, ek::none, ek::none,
                                            ek::GradientMode::accumulate, communicator),
                    "batch_norm_backward: saved comes from a forward without a communicator, expected one with it");
}

TEST_CASE("ghost batches and ranks exclude each other", "[distributed]") {
  ek::ThreadGroup group(1);
  ek::ThreadCommunicator communicator(group, 0);
  Matrix x = Matrix::Random(4, 3), y = x;
  ek::BatchNormSaved<float> saved;
  CHECK_THROWS_WITH(ek::batch_norm(ek::serial, x, ek::none, ek::none, y, saved, {.ghost = 2}, communicator),
                    "batch_norm: statistics over ranks and over ghost batches exclude each other");
  using Layer = ek::SyncBatchNorm<float, Counted>;
  CHECK_THROWS_WITH(Layer(Counted{communicator}, 3, {.ghost = 2}),
                    "SyncBatchNorm: statistics over ranks and over ghost batches exclude each other");
}

TEST_CASE("activation and residual over ranks", "[distributed]") {
  const Matrix x = Matrix::Random(6, 3), residual = Matrix::Random(6, 3), dy = Matrix::Random(6, 3);
  const Eigen::ArrayXf weight = Eigen::ArrayXf::LinSpaced(3, 0.5f, 2), bias = Eigen::ArrayXf::Random(3);
  ek::BatchNormSaved<float> saved;
  Matrix y = x, dx = x, dresidual = x;
  Eigen::ArrayXf dweight = weight * 0, dbias = dweight;
  ek::batch_norm_add<ek::Relu>(ek::serial, x, residual, weight, bias, y, saved);
  ek::batch_norm_add_backward<ek::Relu>(ek::serial, dy, x, residual, weight, bias, saved, dx, dresidual, dweight,
                                        dbias);
  const std::string wrong = on_ranks(2, [&](auto communicator) -> std::string {
    Plain plain{communicator};
    const Index first = communicator.rank() == 0 ? 0 : 2, count = communicator.rank() == 0 ? 2 : 4;
    const auto own = [&](const Matrix& m) -> Matrix { return m.middleRows(first, count); };
    ek::BatchNormSaved<float> own_saved;
    Matrix own_y(count, 3), own_dx(count, 3), own_dresidual(count, 3);
    Eigen::ArrayXf own_dweight = weight * 0, own_dbias = own_dweight;
    ek::batch_norm_add<ek::Relu>(ek::serial, own(x), own(residual), weight, bias, own_y, own_saved, {}, plain);
    ek::batch_norm_add_backward<ek::Relu>(ek::serial, own(dy), own(x), own(residual), weight, bias, own_saved, own_dx,
                                          own_dresidual, own_dweight, own_dbias, ek::GradientMode::accumulate, plain);
    const float far = std::max({(own_y - own(y)).cwiseAbs().maxCoeff(), (own_dx - own(dx)).cwiseAbs().maxCoeff(),
                                (own_dresidual - own(dresidual)).cwiseAbs().maxCoeff()});
    return far < 2e-6f ? "" : "off by " + std::to_string(far);
  });
  CHECK(wrong == "");
}

TEST_CASE("threads that meet: errors of the group", "[distributed]") {
  CHECK_THROWS_AS(ek::ThreadGroup(0), ek::ShapeError);
  ek::ThreadGroup group(2);
  CHECK_THROWS_AS(ek::ThreadCommunicator(group, 2), ek::ShapeError);
  CHECK_THROWS_AS(ek::ThreadCommunicator(group, -1), ek::ShapeError);

  // Messages of unequal lengths, on both ranks.
  const std::string unequal = on_ranks(2, [](auto communicator) -> std::string {
    double sums[3] = {};
    try {
      communicator.all_reduce_sum(sums, 2 + communicator.rank());
    } catch (const ek::RankError&) {
      return "";
    }
    return "no error";
  });
  CHECK(unequal == "");

  // A rank that never comes.
  const std::string aborted = on_ranks(3, [](auto communicator) -> std::string {
    if (communicator.rank() == 1) throw std::runtime_error("no data");
    double value = 0;
    try {
      communicator.all_reduce_sum(&value, 1);
    } catch (const ek::RankError&) {
      return "";
    }
    return "no error";
  });
  CHECK(aborted == "rank 1 throws no data");
}
