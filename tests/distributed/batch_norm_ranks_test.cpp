// BatchNorm over ranks, each a thread: what one process makes of the joined data, with the same statistics on all.
#include "evenkeel/norms/batch_norm.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"

#include <Eigen/Core>

#include <barrier>
#include <thread>
#include <vector>

namespace ek = evenkeel;

namespace {

// Ranks of one process. Sums are taken in the order of the ranks, by each of them.
struct Exchange {
  explicit Exchange(int ranks) : place(std::size_t(ranks)), barrier(ranks) {}
  std::vector<const double*> place;
  std::barrier<> barrier;
};
struct ThreadRank {
  Exchange& exchange;
  int number;

  int rank() const { return number; }
  int size() const { return int(exchange.place.size()); }
  void all_gather(const double* send, double* receive, ek::Index count) {
    exchange.place[std::size_t(number)] = send;
    exchange.barrier.arrive_and_wait();
    for (int r = 0; r < size(); ++r) std::copy_n(exchange.place[std::size_t(r)], count, receive + r * count);
    exchange.barrier.arrive_and_wait();
  }
  void all_reduce_sum(double* values, ek::Index count) {
    std::vector<double> all(std::size_t(size() * count));
    all_gather(values, all.data(), count);
    std::fill_n(values, count, 0.0);
    for (int r = 0; r < size(); ++r)
      for (ek::Index i = 0; i < count; ++i) values[i] += all[std::size_t(r * count + i)];
  }
};

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
void check(const std::vector<ek::Index>& samples, double mean, double spread) {
  const ek::Index channels = 21;
  ek::Index total = 0;
  for (const ek::Index n : samples) total += n;
  Matrix<T> x(total, channels), dy(total, channels), y(total, channels), dx(total, channels);
  const auto values = support::normal<T>(std::size_t(x.size()), 5, mean, spread);
  const auto gradients = support::normal<T>(std::size_t(x.size()), 6);
  for (ek::Index i = 0; i < x.size(); ++i)
    x.data()[i] = T(values[std::size_t(i)]), dy.data()[i] = T(gradients[std::size_t(i)]);
  const Eigen::Array<T, Eigen::Dynamic, 1> weight =
      Eigen::Array<T, Eigen::Dynamic, 1>::LinSpaced(channels, T(-1), T(2));
  Eigen::Array<T, Eigen::Dynamic, 1> dweight = weight * 0, dbias = dweight;
  ek::BatchNormSaved<T> saved;
  ek::batch_norm(ek::serial, x, weight, weight, y, saved);
  ek::batch_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias);
  ek::RunningStatistics<T> running(channels);
  running.update(saved);

  const std::size_t ranks = samples.size();
  Exchange exchange(static_cast<int>(ranks));
  std::vector<Matrix<T>> rank_y(ranks), rank_dx(ranks);
  std::vector<Eigen::Array<T, Eigen::Dynamic, 1>> rank_dw(ranks, weight * 0), rank_db = rank_dw;
  std::vector<ek::RunningStatistics<T>> rank_running(ranks, ek::RunningStatistics<T>(channels));
  std::vector<std::thread> threads;
  ek::Index first = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r, first] {
      ThreadRank rank{exchange, static_cast<int>(r)};
      const Matrix<T> own = x.middleRows(first, samples[r]), own_dy = dy.middleRows(first, samples[r]);
      rank_y[r].resize(samples[r], channels), rank_dx[r].resize(samples[r], channels);
      ek::BatchNormSaved<T> own_saved;
      ek::batch_norm(ek::serial, own, weight, weight, rank_y[r], own_saved, {}, rank);
      ek::batch_norm_backward(ek::serial, own_dy, own, weight, weight, own_saved, rank_dx[r], rank_dw[r], rank_db[r],
                              ek::GradientMode::accumulate, rank);
      rank_running[r].update(own_saved);
    });
    first += samples[r];
  }
  for (std::thread& thread : threads) thread.join();

  const T near = T(sizeof(T) == 4 ? 2e-6 : 1e-13);
  Eigen::Array<T, Eigen::Dynamic, 1> dweight_sum = weight * 0, dbias_sum = dweight_sum;
  first = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (samples[r] > 0) {
      CHECK((rank_y[r] - y.middleRows(first, samples[r])).cwiseAbs().maxCoeff() <= 4 * near);
      CHECK((rank_dx[r] - dx.middleRows(first, samples[r])).cwiseAbs().maxCoeff() <=
            4 * near * std::max(T(1), dx.cwiseAbs().maxCoeff()));
    }
    dweight_sum += rank_dw[r], dbias_sum += rank_db[r];
    first += samples[r];
    for (ek::Index c = 0; c < channels; ++c) {
      CHECK(rank_running[r].mean()[c] == rank_running[0].mean()[c]);
      CHECK(rank_running[r].var()[c] == rank_running[0].var()[c]);
      CHECK(double(rank_running[r].var()[c]) == Approx(double(running.var()[c])).epsilon(double(near)));
    }
  }
  CHECK((dweight_sum - dweight).abs().maxCoeff() <= T(total) * near);
  CHECK((dbias_sum - dbias).abs().maxCoeff() <= T(total) * near);
}

}  // namespace

TEST_CASE("batch_norm over ranks equals one process on the joined data", "[distributed]") {
  for (const auto& samples :
       std::vector<std::vector<ek::Index>>{{5}, {4, 4}, {1, 3}, {2, 1, 4}, {3, 0}, {0, 7, 0, 1}}) {
    check<float>(samples, 0.5, 2);
    check<double>(samples, 0.5, 2);
    check<double>(samples, 1e4, 1e-2);
  }
}

TEST_CASE("one value over all ranks is an error on all of them, none is not", "[distributed]") {
  for (const ek::Index samples : {0, 1}) {
    Exchange exchange(2);
    int thrown[2] = {};
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        ThreadRank rank{exchange, r};
        Matrix<float> x = Matrix<float>::Constant(r == 0 ? samples : 0, 3, 1.0f), y = x;
        ek::BatchNormSaved<float> saved;
        ek::RunningStatistics<float> running(3);
        try {
          ek::batch_norm(ek::serial, x, ek::none, ek::none, y, saved, {}, rank);
          running.update(saved);
        } catch (const ek::ShapeError&) {
          thrown[r] = 1;
        }
        if (running.num_batches_tracked != 0) thrown[r] = 2;
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(thrown[0] == samples);
    CHECK(thrown[1] == samples);
  }
}

TEST_CASE("ghost batches and ranks exclude each other", "[distributed]") {
  Exchange exchange(1);
  ThreadRank rank{exchange, 0};
  Matrix<float> x = Matrix<float>::Random(4, 3), y = x;
  ek::BatchNormSaved<float> saved;
  CHECK_THROWS_WITH(ek::batch_norm(ek::serial, x, ek::none, ek::none, y, saved, {.ghost = 2}, rank),
                    "batch_norm: statistics over ranks and over ghost batches exclude each other");
}
