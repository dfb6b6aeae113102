// BatchNorm over ranks on a device: the arithmetic around the exchange, with a communicator that plays back what the other
// ranks have sent.
#include "cuda/channel_checks.hpp"
#include "support/cuda/launched.hpp"

using namespace cuda_test;

namespace {

using Row3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;
using RowMap = Eigen::TensorMap<Row3>;

// Each rank runs by itself, once to be heard and once more to hear the others.
class Playback {
 public:
  using Exchanges = std::vector<std::vector<Values>>;  // (exchanges, ranks), a message each

  Playback(Exchanges& exchanges, int rank, int size) : exchanges_(&exchanges), rank_(rank), size_(size) {}
  int rank() const { return rank_; }
  int size() const { return size_; }
  cudaStream_t stream() const { return nullptr; }
  void all_gather(const double* send, double* receive, ek::Index count) {
    for (const Values& message : exchange(send, count))
      receive = message.empty() ? std::copy_n(send, count, receive) : std::copy_n(message.data(), count, receive);
  }
  void all_reduce_sum(double* values, ek::Index count) {
    const std::vector<Values> all = exchange(values, count);
    std::fill_n(values, count, 0.0);
    for (const Values& message : all)
      for (std::size_t i = 0; i < message.size(); ++i) values[i] += message[i];
  }

 private:
  std::vector<Values>& exchange(const double* send, ek::Index count) {
    if (exchanges_->size() == number_) exchanges_->emplace_back(std::size_t(size_));
    std::vector<Values>& all = (*exchanges_)[number_++];
    all[std::size_t(rank_)].assign(send, send + count);
    return all;
  }
  Exchanges* exchanges_;
  std::size_t number_ = 0;
  int rank_, size_;
};
static_assert(ek::Communicator<Playback>);

struct Result {
  Values y, dx, dweight, dbias, running, statistics;
  std::string error;
};

// A layer's forward and backward over samples first..first+count-1, with gradients that were 1 before.
template <class Layer, class... WithRanks>
Result run(Layer& norm, const Channels& p, std::size_t first, std::size_t count, bool backward, bool wrong_y,
           bool wrong_dx, const WithRanks&... with_ranks) {
  const ek::CudaStream device(nullptr, {4, 232448, 90});
  const std::size_t pitch = p.C * p.S;
  const auto part = [&](const Values& v) {
    return Values(v.begin() + std::ptrdiff_t(first * pitch), v.begin() + std::ptrdiff_t((first + count) * pitch));
  };
  DeviceMemory<float> x(part(p.x)), dy(part(p.dy)), y(count * pitch), dx(count * pitch);
  const auto map = [&](DeviceMemory<float>& m, bool wrong = false) {
    return RowMap(m.data(), ek::Index(count) - wrong, ek::Index(p.C), ek::Index(p.S));
  };
  for (std::size_t c = 0; c < p.C; ++c) norm.weight.value()[c] = float(p.weight[c]);
  std::fill_n(norm.weight.gradient(), p.C, 1.0f), std::fill_n(norm.bias.gradient(), p.C, 1.0f);
  norm.saved.reserve(device, map(x), norm.options(), with_ranks...);
  Result result;
  try {
    norm.forward(device, map(x), map(y, wrong_y));
    if (backward) norm.backward(device, map(dy), map(x), map(dx, wrong_dx));
  } catch (const ek::ShapeError& e) {
    result.error = e.what();
  }
  result.y = y.values(), result.dx = dx.values();
  result.dweight = DeviceMemory<float>::read(norm.weight.gradient(), p.C);
  result.dbias = DeviceMemory<float>::read(norm.bias.gradient(), p.C);
  result.running = DeviceMemory<float>::read(norm.running.data(), 2 * p.C);
  result.statistics = DeviceMemory<float>::read(norm.saved.statistics.data(), 3 * p.C);
  return result;
}

using RankLayer = ek::SyncBatchNorm<float, Playback, ek::Identity, ek::CudaStorage>;

// The results of all ranks, of which one may have a wrong y or dx.
std::vector<Result> run_ranks(const Channels& p, const std::vector<std::size_t>& samples, int wrong_y = -1,
                              int wrong_dx = -1) {
  Playback::Exchanges exchanges;
  std::vector<Result> results;
  for (int pass = 0; pass < 3; ++pass) {  // a backward's message needs a forward that has heard all
    results.clear();
    std::size_t first = 0;
    for (std::size_t r = 0; r < samples.size(); ++r) {
      const Playback communicator(exchanges, int(r), int(samples.size()));
      RankLayer norm(communicator, ek::Index(p.C));
      results.push_back(
          run(norm, p, first, samples[r], wrong_y < 0, int(r) == wrong_y, int(r) == wrong_dx, norm.communicator()));
      first += samples[r];
    }
  }
  CHECK(exchanges.size() == (wrong_y < 0 ? 2 : 1));
  for (const Values& message : exchanges[0]) CHECK(message.size() == 3 * p.C + 1);
  if (exchanges.size() > 1)
    for (const Values& message : exchanges[1]) CHECK(message.size() == 2 * p.C + 1);
  return results;
}

double distance(const Values& a, const Values& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double apart = std::abs(a[i] - b[i]);
    worst = std::max(worst, apart < INFINITY ? apart : INFINITY);
  }
  return worst;
}
bool all_nan(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

// As in channel_layers_test.cpp: 20 roundings of numbers up to 16.
constexpr double near = 20 * 16 * 6e-8;

}  // namespace

TEST_CASE("BatchNorm over ranks on a device equals one device with all data", "[cuda][distributed]") {
  for (const double mean : {0.25, 1e4})
    for (const std::vector<std::size_t>& samples :
         std::vector<std::vector<std::size_t>>{{4}, {2, 1, 4}, {3, 0}, {0, 2, 0, 1}}) {
      std::size_t total = 0;
      for (const std::size_t n : samples) total += n;
      const Channels p = channels<float>(total, 5, 6, total, mean, mean > 1 ? 1e-2 : 1);
      ek::BatchNorm<float, ek::Identity, ek::CudaStorage> one(5);
      const Result expected = run(one, p, 0, total, true, false, false);
      const double large = mean > 1 ? 100 : 1;  // the size of dx
      Result joined;
      joined.dweight = joined.dbias = Values(5, 1.0 - double(samples.size()));
      const auto ranks = run_ranks(p, samples);
      for (const Result& rank : ranks) {
        joined.y.insert(joined.y.end(), rank.y.begin(), rank.y.end());
        joined.dx.insert(joined.dx.end(), rank.dx.begin(), rank.dx.end());
        for (std::size_t c = 0; c < 5; ++c) {
          joined.dweight[c] += rank.dweight[c];
          joined.dbias[c] += rank.dbias[c];
        }
        CHECK(rank.error == "");
        CHECK(rank.statistics == ranks[0].statistics);
        CHECK(rank.running == ranks[0].running);
        CHECK(distance(rank.running, expected.running) < near * std::max(1.0, mean));
      }
      CHECK(distance(joined.y, expected.y) < near);
      CHECK(distance(joined.dx, expected.dx) < large * near);
      CHECK(distance(joined.dweight, expected.dweight) < 8 * near);
      CHECK(distance(joined.dbias, expected.dbias) < 8 * near);
    }
  CHECK(emulator::never_launched("detail/rank_kernels.cuh").empty());
}

TEST_CASE("a rank of devices whose call fails leaves NaN on the others, and nothing else", "[cuda][distributed]") {
  const Channels p = channels<float>(6, 5, 6);
  for (int culprit = 0; culprit < 2; ++culprit) {
    INFO("rank " << culprit);
    const auto forward = run_ranks(p, {3, 3}, culprit);
    CHECK_THAT(forward[std::size_t(culprit)].error, support::contains_text("y is 2x5x6"));
    const Result& other = forward[std::size_t(1 - culprit)];
    CHECK(all_nan(other.y));
    CHECK(other.running == Values{0, 0, 0, 0, 0, 1, 1, 1, 1, 1});

    const auto backward = run_ranks(p, {3, 3}, -1, culprit);
    CHECK_THAT(backward[std::size_t(culprit)].error, support::contains_text("dx is 2x5x6"));
    const Result& waiting = backward[std::size_t(1 - culprit)];
    CHECK_FALSE(all_nan(waiting.y));
    CHECK(all_nan(waiting.dx));
    CHECK(waiting.dweight == Values(5, 1.0));
    CHECK(waiting.dbias == Values(5, 1.0));
  }
}

TEST_CASE("ranks on devices share the device's stream", "[cuda][distributed]") {
  Playback::Exchanges exchanges;
  RankLayer norm(Playback(exchanges, 0, 1), 5);
  DeviceMemory<float> x(60);
  int place = 0;
  const ek::CudaStream device(reinterpret_cast<cudaStream_t>(&place), {4, 232448, 90});
  const RowMap map(x.data(), 2, 5, 6);
  norm.saved.reserve(device, map, norm.options(), norm.communicator());
  CHECK_THROWS_WITH(norm.forward(device, map, RowMap(x.data(), 2, 5, 6)),
                    "forward: the communicator's stream is not the device's");
}
