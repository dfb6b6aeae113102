// Times norms on a GPU and prints a line of CSV for each: who,op,type,rows,features,microseconds,GB_per_s.
//
//   cuda_norms [small]      small: shapes that the emulator can do, to see that the program runs
//
// A measurement goes over several sets of buffers, together larger than the L2 cache, whose calls are one CUDA graph;
// the figure is the median of its runs, divided by the calls. Bytes are what an ideal kernel reads and writes: forward
// 2 tensors, backward 3, fused add 4. "copy" is a kernel that copies 16 bytes a thread.

#include "evenkeel/cuda.hpp"
#include "gpu/device_array.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace ek = evenkeel;
using gpu::DeviceArray;

namespace {

constexpr std::int64_t cache_bytes = std::int64_t(256) << 20;
constexpr int repeats = 21;

__global__ void copy_kernel(const uint4* from, uint4* into, std::int64_t count) {
  const std::int64_t i = gpu::thread_number();
  if (i < count) into[i] = from[i];
}

/// Microseconds of one run of `body`, which puts its work into the stream: the median of several.
template <class F>
double microseconds(cudaStream_t stream, const F& body) {
  body();
  gpu::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  std::vector<double> times;
#if defined(__CUDACC__)
  cudaGraph_t graph;
  cudaGraphExec_t runnable;
  cudaEvent_t begin, end;
  gpu::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  body();
  gpu::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  gpu::check(cudaGraphInstantiate(&runnable, graph, 0), "cudaGraphInstantiate");
  gpu::check(cudaEventCreate(&begin), "cudaEventCreate");
  gpu::check(cudaEventCreate(&end), "cudaEventCreate");
  for (int k = 0; k < repeats; ++k) {
    gpu::check(cudaEventRecord(begin, stream), "cudaEventRecord");
    gpu::check(cudaGraphLaunch(runnable, stream), "cudaGraphLaunch");
    gpu::check(cudaEventRecord(end, stream), "cudaEventRecord");
    gpu::check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0;
    gpu::check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    times.push_back(1e3 * static_cast<double>(milliseconds));
  }
  cudaGraphExecDestroy(runnable);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
#else
  for (int k = 0; k < 3; ++k) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
#endif
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void print(const char* op, const char* type, std::int64_t rows, std::int64_t features, double time, double bytes) {
  std::printf("evenkeel,%s,%s,%lld,%lld,%.2f,%.0f\n", op, type, static_cast<long long>(rows),
              static_cast<long long>(features), time, bytes / time * 1e-3);
  std::fflush(stdout);
}

template <class T>
using Matrix = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
using Vector = Eigen::Map<Eigen::VectorXf>;

template <class T>
struct Buffers {
  explicit Buffers(std::int64_t size) : x(size), y(size), dy(size), dx(size) {}
  DeviceArray<T> x, y, dy, dx;
  ek::RmsNormSaved<float, ek::CudaStorage> rms;
  ek::LayerNormSaved<float, ek::CudaStorage> layer;
};

template <class T>
void time_norms(const ek::CudaStream& device, const char* type, std::int64_t rows, std::int64_t features,
                std::int64_t cache) {
  const std::int64_t size = rows * features, tensor = size * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t sets = std::clamp<std::int64_t>(cache / (2 * tensor) + 1, 2, 64);
  std::vector<std::unique_ptr<Buffers<T>>> all;
  DeviceArray<float> weight(features), bias(features), dweight(features), dbias(features);
  ek::normal(weight.data(), features, 1, 0.1, ek::CudaRandom(device, ek::RandomStream(1, "weight")));
  ek::normal(bias.data(), features, 0, 1, ek::CudaRandom(device, ek::RandomStream(1, "bias")));
  const auto matrix = [&](DeviceArray<T>& a) { return Matrix<T>(a.data(), rows, features); };
  const auto vector = [&](DeviceArray<float>& a) { return Vector(a.data(), features); };
  for (std::int64_t k = 0; k < sets; ++k) {
    all.push_back(std::make_unique<Buffers<T>>(size));
    Buffers<T>& b = *all.back();
    ek::normal(b.x.data(), size, 0, 1, ek::CudaRandom(device, ek::RandomStream(std::uint64_t(k), "x")));
    ek::normal(b.dy.data(), size, 0, 1, ek::CudaRandom(device, ek::RandomStream(std::uint64_t(k), "dy")));
    b.rms.reserve(device, matrix(b.x));
    b.layer.reserve(device, matrix(b.x));
  }
  gpu::wait();
  const auto measure = [&](const char* op, int tensors, const auto& call) {
    const double time = microseconds(device.stream(), [&] {
      for (auto& b : all) call(*b);
    });
    print(op, type, rows, features, time / static_cast<double>(sets), static_cast<double>(tensors * tensor));
  };
  measure("copy", 2, [&](Buffers<T>& b) {
    const std::int64_t words = tensor / 16;
    ek::detail::LaunchShape shape;
    shape.block = 256;
    shape.grid = static_cast<unsigned>((words + 255) / 256);
    ek::detail::launch(&copy_kernel, shape, device.stream(), reinterpret_cast<const uint4*>(b.x.data()),
                       reinterpret_cast<uint4*>(b.y.data()), words);
  });
  measure("rms_norm", 2, [&](Buffers<T>& b) { ek::rms_norm(device, matrix(b.x), vector(weight), matrix(b.y), b.rms); });
  measure("rms_norm_backward", 3, [&](Buffers<T>& b) {
    ek::rms_norm_backward(device, matrix(b.dy), matrix(b.x), vector(weight), b.rms, matrix(b.dx), vector(dweight),
                          ek::GradientMode::overwrite);
  });
  measure("layer_norm", 2, [&](Buffers<T>& b) {
    ek::layer_norm(device, matrix(b.x), vector(weight), vector(bias), matrix(b.y), b.layer);
  });
  measure("layer_norm_backward", 3, [&](Buffers<T>& b) {
    ek::layer_norm_backward(device, matrix(b.dy), matrix(b.x), vector(weight), b.layer, matrix(b.dx), vector(dweight),
                            vector(dbias), ek::GradientMode::overwrite);
  });
  measure("add_rms_norm", 4, [&](Buffers<T>& b) {
    ek::add_rms_norm(device, matrix(b.x), matrix(b.dy), vector(weight), matrix(b.dx), matrix(b.y), b.rms);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const bool small = argc > 1 && std::string(argv[1]) == "small";
  try {
    cudaStream_t stream = nullptr;
#if defined(__CUDACC__)
    gpu::check(cudaStreamCreate(&stream), "cudaStreamCreate");
#endif
    const ek::CudaStream device(stream);
    if (small) {
      time_norms<Eigen::bfloat16>(device, "bfloat16", 16, 128, 1);
      time_norms<float>(device, "float", 4, 1024, 1);
      return 0;
    }
    constexpr std::int64_t shapes[][2] = {{8192, 128},   {131072, 128}, {4096, 768},  {65536, 768}, {4096, 2048},
                                          {2048, 4096},  {16384, 4096}, {8192, 5120}, {8192, 8192}, {8192, 16384},
                                          {4096, 32768}, {1024, 65536}, {512, 131072}};
    for (const auto& s : shapes) time_norms<Eigen::bfloat16>(device, "bfloat16", s[0], s[1], cache_bytes);
    for (const auto& s : {shapes[3], shapes[6]}) time_norms<float>(device, "float", s[0], s[1], cache_bytes);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
