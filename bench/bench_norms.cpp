// Every norm, forward and backward: bytes per second, and the share of the speed of a plain copy of the same bytes
// (counter copy_share; 1 is as fast as memcpy). Bytes are those of the activations alone. Outputs are reused.

#include "evenkeel/evenkeel.hpp"
#include "paired.hpp"
#include "yardstick_layer_norm.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <cstring>
#include <string>
#include <thread>

namespace ek = evenkeel;
using ek::Index;

namespace {

/// A matrix in memory aligned to 64 bytes, or, with a shift, to 16.
class Matrix {
 public:
  using Map = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  Matrix(Index rows, Index length, Index shift = 0) : rows_(rows), length_(length), shift_(shift) {
    memory_.reserve(rows * length + shift);
    map() = Map::PlainObject::Random(rows, length);
  }
  Map map() { return Map(memory_.data() + shift_, rows_, length_); }

 private:
  ek::HostBuffer<float> memory_;
  Index rows_, length_, shift_;
};

/// What every norm needs, in the shape of the benchmark's arguments.
struct Data {
  explicit Data(const benchmark::State& state, Index shift = 0) : Data(state.range(0), state.range(1), shift) {}
  Data(Index row_count, Index row_length, Index shift = 0)
      : rows(row_count),
        length(row_length),
        x_memory(rows, length, shift),
        y_memory(rows, length, shift),
        dy_memory(rows, length, shift),
        sum_memory(rows, length, shift) {}

  Index rows, length;
  Matrix x_memory, y_memory, dy_memory, sum_memory;
  Matrix::Map x = x_memory.map(), y = y_memory.map(), dy = dy_memory.map(), sum = sum_memory.map();
  Eigen::ArrayXf weight = Eigen::ArrayXf::LinSpaced(length, 0.5f, 1.5f), bias = weight - 1;
  Eigen::ArrayXf dweight = Eigen::ArrayXf::Zero(length), dbias = dweight;
  ek::LayerNormSaved<float> layer_saved;
  ek::RmsNormSaved<float> rms_saved;
  ek::BatchNormSaved<float> batch_saved;
};

/// Against memcpy of the same bytes: `arrays` counts the activations that the operation reads and writes.
template <class F>
void against_copy(benchmark::State& state, const Data& d, int arrays, const F& operation) {
  const double bytes = static_cast<double>(arrays) * static_cast<double>(d.rows * d.length) * sizeof(float);
  ek::HostBuffer<char> from, to;
  const auto size = static_cast<std::size_t>(bytes / 2);
  from.reserve(static_cast<Index>(size));
  to.reserve(static_cast<Index>(size));
  paired::run(state, bytes, "copy_share", operation, [&] { std::memcpy(to.data(), from.data(), size); });
}

void layer_norm_forward(benchmark::State& state) {
  Data d(state);
  against_copy(state, d, 2, [&] { ek::layer_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.layer_saved); });
}
void layer_norm_forward_aligned_to_16(benchmark::State& state) {
  Data d(state, 4);
  against_copy(state, d, 2, [&] { ek::layer_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.layer_saved); });
}
void layer_norm_backward(benchmark::State& state) {
  Data d(state);
  ek::layer_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.layer_saved);
  against_copy(state, d, 3, [&] {
    ek::layer_norm_backward(ek::serial, d.dy, d.x, d.weight, d.layer_saved, d.y, d.dweight, d.dbias);
  });
}
void rms_norm_forward(benchmark::State& state) {
  Data d(state);
  against_copy(state, d, 2, [&] { ek::rms_norm(ek::serial, d.x, d.weight, d.y, d.rms_saved); });
}
void rms_norm_backward(benchmark::State& state) {
  Data d(state);
  ek::rms_norm(ek::serial, d.x, d.weight, d.y, d.rms_saved);
  against_copy(state, d, 3,
               [&] { ek::rms_norm_backward(ek::serial, d.dy, d.x, d.weight, d.rms_saved, d.y, d.dweight); });
}
void add_rms_norm_forward(benchmark::State& state) {
  Data d(state);
  against_copy(state, d, 4, [&] { ek::add_rms_norm(ek::serial, d.x, d.dy, d.weight, d.sum, d.y, d.rms_saved); });
}
void add_rms_norm_backward(benchmark::State& state) {
  Data d(state);
  ek::add_rms_norm(ek::serial, d.x, d.dy, d.weight, d.sum, d.y, d.rms_saved);
  against_copy(state, d, 4,
               [&] { ek::add_rms_norm_backward(ek::serial, d.dy, d.x, d.sum, d.weight, d.rms_saved, d.y, d.dweight); });
}
void batch_norm_forward(benchmark::State& state) {
  Data d(state);
  against_copy(state, d, 2, [&] { ek::batch_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.batch_saved); });
}
void batch_norm_backward(benchmark::State& state) {
  Data d(state);
  ek::batch_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.batch_saved);
  against_copy(state, d, 3, [&] {
    ek::batch_norm_backward(ek::serial, d.dy, d.x, d.weight, d.batch_saved, d.y, d.dweight, d.dbias);
  });
}

/// Images, N x C x space: statistics per channel, or per sample and group.
struct Images {
  using Tensor = Eigen::TensorMap<Eigen::Tensor<float, 3, Eigen::RowMajor>>;
  explicit Images(const benchmark::State& state)
      : n(state.range(0)),
        c(state.range(1)),
        space(state.range(2)),
        x_memory(n * c, space),
        y_memory(n * c, space),
        dy_memory(n * c, space) {}

  Index n, c, space;
  Matrix x_memory, y_memory, dy_memory;
  Tensor x{x_memory.map().data(), n, c, space}, y{y_memory.map().data(), n, c, space},
      dy{dy_memory.map().data(), n, c, space};
  Eigen::ArrayXf weight = Eigen::ArrayXf::LinSpaced(c, 0.5f, 1.5f), bias = weight - 1;
  Eigen::ArrayXf dweight = Eigen::ArrayXf::Zero(c), dbias = dweight;
  ek::BatchNormSaved<float> batch_saved;
  ek::GroupNormSaved<float> group_saved;
};
template <class F>
void against_copy(benchmark::State& state, const Images& d, int arrays, const F& operation) {
  against_copy(state, Data(d.n * d.c, d.space), arrays, operation);
}
void batch_norm_images_forward(benchmark::State& state) {
  Images d(state);
  against_copy(state, d, 2, [&] { ek::batch_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.batch_saved); });
}
void batch_norm_images_backward(benchmark::State& state) {
  Images d(state);
  ek::batch_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.batch_saved);
  against_copy(state, d, 3, [&] {
    ek::batch_norm_backward(ek::serial, d.dy, d.x, d.weight, d.batch_saved, d.y, d.dweight, d.dbias);
  });
}
void group_norm_images_forward(benchmark::State& state) {
  Images d(state);
  against_copy(state, d, 2,
               [&] { ek::group_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.group_saved, {.groups = 32}); });
}
void group_norm_images_backward(benchmark::State& state) {
  Images d(state);
  ek::group_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.group_saved, {.groups = 32});
  against_copy(state, d, 3, [&] {
    ek::group_norm_backward(ek::serial, d.dy, d.x, d.weight, d.group_saved, d.y, d.dweight, d.dbias);
  });
}

void l2_norm_forward(benchmark::State& state) {
  Data d(state);
  against_copy(state, d, 2, [&] { ek::l2_norm(ek::serial, d.x, d.weight, d.y, ek::none); });
}
void l2_norm_backward(benchmark::State& state) {
  Data d(state);
  ek::L2NormSaved<float> saved;
  ek::l2_norm(ek::serial, d.x, d.weight, d.y, saved);
  against_copy(state, d, 3, [&] { ek::l2_norm_backward(ek::serial, d.dy, d.x, d.weight, saved, d.y, d.dweight); });
}
void dyt_forward(benchmark::State& state) {
  Data d(state);
  const float alpha = 0.5f;
  against_copy(state, d, 2, [&] { ek::dyt(ek::serial, d.x, &alpha, d.weight, d.bias, d.y, ek::none); });
}
void dyt_backward(benchmark::State& state) {
  Data d(state);
  const float alpha = 0.5f;
  float dalpha = 0;
  ek::DytSaved<float> saved;
  ek::dyt(ek::serial, d.x, &alpha, d.weight, d.bias, d.y, saved);
  against_copy(state, d, 3, [&] {
    ek::dyt_backward(ek::serial, d.dy, d.x, &alpha, d.weight, saved, d.y, &dalpha, d.dweight, d.dbias);
  });
}
/// Half faded out, and wholly.
void taper_rms_norm_forward(benchmark::State& state, double gate) {
  Data d(state);
  ek::TaperRmsNormSaved<float> saved;
  against_copy(state, d, 2, [&] {
    ek::taper_rms_norm(ek::serial, d.x, d.weight, d.weight, ek::none, d.y, saved, {.gate = gate, .factor = 1});
  });
}
void taper_rms_norm_backward(benchmark::State& state, double gate) {
  Data d(state);
  ek::TaperRmsNormSaved<float> saved;
  Eigen::ArrayXf dscale = d.dweight;
  ek::taper_rms_norm(ek::serial, d.x, d.weight, d.weight, ek::none, d.y, saved, {.gate = gate, .factor = 1});
  against_copy(state, d, 3, [&] {
    ek::taper_rms_norm_backward(ek::serial, d.dy, d.x, d.weight, d.weight, saved, d.y, d.dweight, dscale, ek::none);
  });
}
void weight_norm_forward(benchmark::State& state) {
  Data d(state);
  const Eigen::ArrayXf g = Eigen::ArrayXf::Ones(d.rows);
  ek::WeightNormSaved<float> saved;
  against_copy(state, d, 2, [&] { ek::weight_norm(ek::serial, d.x, g, d.y, saved); });
}
void weight_norm_backward(benchmark::State& state) {
  Data d(state);
  const Eigen::ArrayXf g = Eigen::ArrayXf::Ones(d.rows);
  Eigen::ArrayXf dg = g;
  ek::WeightNormSaved<float> saved;
  ek::weight_norm(ek::serial, d.x, g, d.y, saved);
  against_copy(state, d, 3, [&] { ek::weight_norm_backward(ek::serial, d.dy, d.x, g, saved, d.y, dg); });
}

/// One thread against a pool of as many as the machine has.
void layer_norm_forward_threads(benchmark::State& state) {
  Data d(state);
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  Eigen::ThreadPool pool(threads);
  const Eigen::ThreadPoolDevice device(&pool, threads);
  const double bytes = 2.0 * static_cast<double>(d.rows * d.length) * sizeof(float);
  paired::run(
      state, bytes, "times_one_thread", [&] { ek::layer_norm(device, d.x, d.weight, d.bias, d.y, d.layer_saved); },
      [&] { ek::layer_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.layer_saved); });
  state.counters["threads"] = threads;
}

/// The generic loop against the one written by hand for this instruction set.
void layer_norm_forward_yardstick(benchmark::State& state) {
  Data d(state);
  if (!yardstick::available() || d.length % yardstick::length_step() != 0) {
    state.SkipWithError("no yardstick for this instruction set or length");
    return;
  }
  ek::HostBuffer<float> statistics;
  statistics.reserve(3 * d.rows);
  const double bytes = 2.0 * static_cast<double>(d.rows * d.length) * sizeof(float);
  paired::run(
      state, bytes, "times_yardstick", [&] { ek::layer_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.layer_saved); },
      [&] {
        yardstick::layer_norm(d.x.data(), d.weight.data(), d.bias.data(), d.y.data(), d.rows, d.length, 1e-5f,
                              statistics.data());
      });
}

void row_shapes(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(101);
  for (const auto& [rows, length] : {std::pair{8, 64}, {64, 768}, {512, 768}, {2048, 1024}, {64, 767}})
    b->Args({rows, length});
}
void channel_shapes(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(101);
  b->Args({64, 768})->Args({512, 768})->Args({2048, 1024});
}
void image_shapes(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(51);
  b->Args({32, 64, 56 * 56})->Args({8, 256, 14 * 14})->Args({2, 512, 64 * 64});
}
void yardstick_shapes(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(501)->Args({64, 768})->Args({512, 768});
}
void thread_shapes(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(51);
  for (const int rows : {64, 512, 2048, 8192}) b->Args({rows, 768});
}

}  // namespace

BENCHMARK(layer_norm_forward)->Apply(row_shapes);
BENCHMARK(layer_norm_forward_aligned_to_16)->Apply(row_shapes);
BENCHMARK(layer_norm_backward)->Apply(row_shapes);
BENCHMARK(rms_norm_forward)->Apply(row_shapes);
BENCHMARK(rms_norm_backward)->Apply(row_shapes);
BENCHMARK(add_rms_norm_forward)->Apply(row_shapes);
BENCHMARK(add_rms_norm_backward)->Apply(row_shapes);
BENCHMARK(batch_norm_forward)->Apply(channel_shapes);
BENCHMARK(batch_norm_backward)->Apply(channel_shapes);
BENCHMARK(batch_norm_images_forward)->Apply(image_shapes);
BENCHMARK(batch_norm_images_backward)->Apply(image_shapes);
BENCHMARK(group_norm_images_forward)->Apply(image_shapes);
BENCHMARK(group_norm_images_backward)->Apply(image_shapes);
BENCHMARK(l2_norm_forward)->Apply(channel_shapes);
BENCHMARK(l2_norm_backward)->Apply(channel_shapes);
BENCHMARK(dyt_forward)->Apply(channel_shapes);
BENCHMARK(dyt_backward)->Apply(channel_shapes);
BENCHMARK_CAPTURE(taper_rms_norm_forward, half_gate, 0.5)->Apply(channel_shapes);
BENCHMARK_CAPTURE(taper_rms_norm_backward, half_gate, 0.5)->Apply(channel_shapes);
BENCHMARK_CAPTURE(taper_rms_norm_forward, no_gate, 0)->Apply(channel_shapes);
BENCHMARK_CAPTURE(taper_rms_norm_backward, no_gate, 0)->Apply(channel_shapes);
BENCHMARK(weight_norm_forward)->Apply(channel_shapes);
BENCHMARK(weight_norm_backward)->Apply(channel_shapes);
BENCHMARK(layer_norm_forward_threads)->Apply(thread_shapes);
BENCHMARK(layer_norm_forward_yardstick)->Apply(yardstick_shapes);

int main(int argc, char** argv) {
  benchmark::AddCustomContext("evenkeel level", EVENKEEL_BENCH_LEVEL);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
