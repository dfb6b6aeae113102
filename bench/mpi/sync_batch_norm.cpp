// What the messages of SyncBatchNorm cost: how many there are in a step, how long they are, and how long the exchange takes
// beside the norm itself. One step is a forward and a backward of one norm; times are medians of a rank's steps and, in
// brackets, the least of them, each on the slowest rank. Where ranks share cores with each other and with other work, the
// median of an exchange is the time until the other rank gets a core, and the least comes nearer to the exchange's own.
//
//   mpirun -n 4 sync_batch_norm [steps]
#include "evenkeel/distributed/mpi_communicator.hpp"
#include "evenkeel/init/random.hpp"
#include "evenkeel/norms/batch_norm.hpp"
#include "evenkeel/tensor.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

namespace ek = evenkeel;
using ek::Index;
using Tensor = Eigen::Tensor<float, 3, Eigen::RowMajor>;  // (samples, channels, positions)
using Vector = Eigen::Array<float, Eigen::Dynamic, 1>;

// Counts the messages that a rank sends.
struct Counted {
  ek::MpiCommunicator to;
  long messages = 0, values = 0;

  int rank() const { return to.rank(); }
  int size() const { return to.size(); }
  auto start_all_gather(const double* send, double* receive, Index count) {
    ++messages, values += count;
    return to.start_all_gather(send, receive, count);
  }
  auto start_all_reduce_sum(double* sums, Index count) {
    ++messages, values += count;
    return to.start_all_reduce_sum(sums, count);
  }
  void all_gather(const double* send, double* receive, Index count) { start_all_gather(send, receive, count).wait(); }
  void all_reduce_sum(double* sums, Index count) { start_all_reduce_sum(sums, count).wait(); }
};

struct Times {
  double median, least;
};

// The time of step() on the slowest rank, in microseconds.
template <class F>
Times slowest(const F& step, int steps) {
  std::vector<double> times;
  for (int i = 0; i < steps + 2; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = std::chrono::steady_clock::now();
    step();
    if (i >= 2) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + steps / 2, times.end());
  Times result{1e6 * times[std::size_t(steps / 2)], 1e6 * *std::min_element(times.begin(), times.end())};
  MPI_Allreduce(MPI_IN_PLACE, &result, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return result;
}

void measure(Index samples, Index channels, Index positions, int steps) {
  Counted communicator{ek::MpiCommunicator(MPI_COMM_WORLD)};
  Tensor x(samples, channels, positions), dy = x, y = x, dx = x;
  ek::RandomStream(std::uint64_t(communicator.rank()), "x").fill_normal(x.data(), x.size());
  ek::RandomStream(std::uint64_t(communicator.rank()), "dy").fill_normal(dy.data(), dy.size());
  const Vector weight = Vector::Ones(channels), bias = weight * 0;
  Vector dweight = weight, dbias = weight;
  ek::BatchNormSaved<float> saved;
  constexpr auto mode = ek::GradientMode::overwrite;

  const Times local = slowest(
      [&] {
        ek::batch_norm(ek::serial, x, weight, bias, y, saved);
        ek::batch_norm_backward(ek::serial, dy, x, weight, bias, saved, dx, dweight, dbias, mode);
      },
      steps);
  const Times synchronized = slowest(
      [&] {
        ek::batch_norm(ek::serial, x, weight, bias, y, saved, {}, communicator);
        ek::batch_norm_backward(ek::serial, dy, x, weight, bias, saved, dx, dweight, dbias, mode, communicator);
      },
      steps);
  const long calls = steps + 2, messages = communicator.messages / calls, values = communicator.values / calls;
  std::vector<double> forward(std::size_t(3 * channels + 1)), all(forward.size() * std::size_t(communicator.size()));
  const Times exchange = slowest(
      [&] {
        communicator.all_gather(forward.data(), all.data(), 3 * channels + 1);
        communicator.all_reduce_sum(forward.data(), 2 * channels + 1);
      },
      steps);
  if (communicator.rank() == 0)
    std::printf("%4td x %3td x %4td  %8ld  %10ld  %7.0f (%6.0f)  %7.0f (%6.0f)  %7.0f (%6.0f)  %6.0f%% (%.0f%%)\n",
                samples, channels, positions, messages, 8 * values, exchange.median, exchange.least, local.median,
                local.least, synchronized.median, synchronized.least, 100 * exchange.median / local.median,
                100 * exchange.least / local.least);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 51;
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (rank == 0)
    std::printf(
        "%d ranks, float, forward and backward, microseconds\n"
        "each rank's data   messages  bytes sent         exchange       local norm     synchronized  exchange/norm\n",
        ranks);
  measure(8, 64, 1, steps);
  measure(8, 16, 196, steps);
  measure(32, 64, 196, steps);
  measure(32, 64, 784, steps);
  measure(32, 256, 196, steps);
  MPI_Finalize();
}
