// What the emulator promises besides finding faults, which planted_faults.cpp shows, and the seam's host side.

#include "evenkeel/detail/launch.cuh"
#include "support/catch.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

using namespace evenkeel::detail;
using emulator::Order;

namespace {

// Bits of the half or bfloat16 that Eigen rounds to.
std::uint16_t eigen_bits(Eigen::half h) { return h.x; }
std::uint16_t eigen_bits(Eigen::bfloat16 b) { return b.value; }

template <class T>
T from_bits(std::uint32_t bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}
template <class Reference>
Reference reference_from_bits(std::uint32_t bits) {
  return std::bit_cast<Reference>(static_cast<std::uint16_t>(bits));
}

template <class T, class Reference>
bool rounds_alike(float value) {
  const std::uint16_t got = static_cast<T>(value).bits, expected = eigen_bits(static_cast<Reference>(value));
  if (std::isnan(value)) return got == emulator::nan_bits;
  return got == expected;
}

// Every 16-bit value, the middle between it and the next larger one, and the neighbours of both among the floats: all
// the places where the rounded value changes.
template <class T, class Reference>
void compare_with_eigen() {
  int different = 0;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = static_cast<float>(from_bits<T>(bits)), next = static_cast<float>(from_bits<T>(bits + 1));
    const float expected = static_cast<float>(reference_from_bits<Reference>(bits));
    const bool same = std::isnan(expected)
                          ? std::isnan(value)
                          : std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(expected);
    different += !same;
    different += std::bit_cast<std::uint64_t>(static_cast<double>(from_bits<T>(bits))) !=
                 std::bit_cast<std::uint64_t>(static_cast<double>(value));
    const float middle =
        std::bit_cast<float>(std::midpoint(std::bit_cast<std::uint32_t>(value), std::bit_cast<std::uint32_t>(next)));
    for (float place : {value, middle})
      for (int step = -1; step <= 1; ++step)
        different += !rounds_alike<T, Reference>(
            std::bit_cast<float>(std::bit_cast<std::uint32_t>(place) + static_cast<std::uint32_t>(step)));
  }
  CHECK(different == 0);
}

// From double: the middle goes to the even neighbour, and a hair beside it, too little for a float, decides.
template <class T>
void check_single_rounding() {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7fff; ++bits) {
    const double low = static_cast<double>(from_bits<T>(bits)), high = static_cast<double>(from_bits<T>(bits + 1));
    if (!std::isfinite(high)) break;
    const double middle = (low + high) / 2;
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (std::uint32_t sign : {0u, 0x8000u}) {
      const double factor = sign != 0 ? -1 : 1;
      wrong += static_cast<T>(factor * low).bits != (bits | sign);
      wrong += static_cast<T>(factor * middle).bits != (even | sign);
      wrong += static_cast<T>(factor * std::nextafter(middle, high)).bits != ((bits + 1) | sign);
      wrong += static_cast<T>(factor * std::nextafter(middle, low)).bits != (bits | sign);
    }
  }
  CHECK(wrong == 0);
  CHECK(std::isinf(static_cast<float>(static_cast<T>(1e300))));
  CHECK(std::isnan(static_cast<float>(static_cast<T>(std::numeric_limits<double>::quiet_NaN()))));
}

struct OptionsGuard {
  ~OptionsGuard() { emulator::options() = {}; }
};

int calls(const char* name) { return emulator::record().calls[name]; }

}  // namespace

// Kernels have external linkage, so that the record can name them.
namespace emulator_test {

__global__ void __launch_bounds__(64) note_order(int* order, unsigned* next) {
  order[atomicAdd(next, 1u)] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

template <class T>
__global__ void __launch_bounds__(32) shuffles(T* out) {
  const T lane = static_cast<T>(threadIdx.x);
  out[threadIdx.x] = __shfl_sync(0xffffffffu, lane, 3, 8);
  out[32 + threadIdx.x] = __shfl_xor_sync(0xffffffffu, lane, 5);
  out[64 + threadIdx.x] = __shfl_down_sync(0xffffffffu, lane, 2u, 16);
  out[96 + threadIdx.x] = __shfl_up_sync(0xffffffffu, lane, 2u, 16);
}

template <class T, int N>
__global__ void __launch_bounds__(32) copy_rounded(const T* x, T* y) {
  const Elements<T, N> in = load_elements<N>(x + N * threadIdx.x);
  Elements<T, N> out;
  for (int i = 0; i < N; ++i) out[i] = to<T>(to<float>(in[i]));
  store_elements(y + N * threadIdx.x, out);
}

__global__ void __launch_bounds__(32) fill_dynamic(float* y) {
  EVENKEEL_DYNAMIC_SHARED(float, scratch);
  scratch[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncwarp();
  y[threadIdx.x] = scratch[31 - threadIdx.x];
}

__global__ void __launch_bounds__(32) too_much_static() {
  EVENKEEL_SHARED(float, large, 12289);
  large[threadIdx.x] = 0;
}
__global__ void __launch_bounds__(32) too_much_together() {
  EVENKEEL_SHARED(float, large, 1024);
  large[threadIdx.x] = 0;
}

__global__ void __launch_bounds__(64) absent_lane() { __syncwarp(); }
__global__ void __launch_bounds__(32) caller_not_in_mask() { __syncwarp(1u); }
__global__ void __launch_bounds__(32) source_not_in_mask(float* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}
__global__ void __launch_bounds__(32) odd_width(float* y) { y[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0, 12); }
__global__ void __launch_bounds__(32) misaligned_atomic(unsigned char* bytes) {
  atomicAdd(reinterpret_cast<unsigned*>(bytes + 1), 1u);
}

__global__ void __launch_bounds__(32) ranks(unsigned* rank) {
  if (threadIdx.x == 0) rank[blockIdx.x] = cluster_rank();
}
__global__ void __launch_bounds__(32) rank_outside(float* y) {
  EVENKEEL_SHARED(float, mine, 1);
  cluster_sync();
  y[0] = *cluster_map(mine, 2);
}
__global__ void __launch_bounds__(32) map_of_global_memory(float* y) {
  cluster_sync();
  *cluster_map(y, 0) = 0;
}

}  // namespace emulator_test

using namespace emulator_test;

namespace {

std::vector<int> order_of(Order order, std::uint64_t seed, unsigned resident) {
  const OptionsGuard guard;
  emulator::options() = {.order = order, .seed = seed, .resident = resident};
  std::vector<int> threads(4 * 64, -1);
  unsigned next = 0;
  launch(note_order, {.grid = 4, .block = 64}, nullptr, threads.data(), &next);
  CHECK(next == threads.size());
  return threads;
}

}  // namespace

TEST_CASE("emulator: half and bfloat16 round as Eigen's do", "[cuda]") {
  compare_with_eigen<__half, Eigen::half>();
  compare_with_eigen<__nv_bfloat16, Eigen::bfloat16>();
}

TEST_CASE("emulator: half and bfloat16 are rounded once from double", "[cuda]") {
  check_single_rounding<__half>();
  check_single_rounding<__nv_bfloat16>();
}

TEST_CASE("emulator: every order runs every thread once, and orders and seeds differ", "[cuda]") {
  std::vector<int> forward(4 * 64);
  std::iota(forward.begin(), forward.end(), 0);
  CHECK(order_of(Order::forward, 1, 1) == forward);
  std::vector<std::vector<int>> orders;
  for (const Order order : {Order::forward, Order::reverse, Order::random, Order::skew})
    for (std::uint64_t seed : {1u, 2u}) {
      const std::vector<int> got = order_of(order, seed, 2);
      CHECK(got == order_of(order, seed, 2));
      std::vector<int> sorted = got;
      std::sort(sorted.begin(), sorted.end());
      CHECK(sorted == forward);
      if (order != Order::forward || seed == 1) orders.push_back(got);
    }
  for (std::size_t a = 0; a < orders.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) CHECK(orders[a] != orders[b]);
}

TEST_CASE("emulator: several host threads run all blocks", "[cuda]") {
  const OptionsGuard guard;
  emulator::options().workers = 3;
  std::vector<int> threads(16 * 64, -1);
  unsigned next = 0;
  launch(note_order, {.grid = 16, .block = 64}, nullptr, threads.data(), &next);
  std::sort(threads.begin(), threads.end());
  for (int i = 0; i < 16 * 64; ++i) REQUIRE(threads[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("emulator: shuffles take from the lanes that CUDA's take from", "[cuda]") {
  std::vector<double> out(128);
  launch(shuffles<double>, {}, nullptr, out.data());
  for (int lane = 0; lane < 32; ++lane) {
    const std::size_t l = static_cast<std::size_t>(lane);
    const int first = lane / 16 * 16;
    CHECK(out[l] == lane / 8 * 8 + 3);
    CHECK(out[32 + l] == (lane ^ 5));
    CHECK(out[64 + l] == (lane + 2 < first + 16 ? lane + 2 : lane));
    CHECK(out[96 + l] == (lane - 2 >= first ? lane - 2 : lane));
  }
}

namespace {

template <class T, int N>
void check_copy() {
  static_assert(alignof(Elements<T, N>) == std::min<std::size_t>(16, sizeof(T) * N));
  static_assert(sizeof(Elements<T, N>) == sizeof(T) * N);
  T *x = nullptr, *y = nullptr;
  REQUIRE(cudaMalloc(&x, 32 * N * sizeof(T)) == cudaSuccess);
  REQUIRE(cudaMalloc(&y, 32 * N * sizeof(T)) == cudaSuccess);
  for (int i = 0; i < 32 * N; ++i) x[i] = to<T>(static_cast<float>(i % 200));
  launch(copy_rounded<T, N>, {}, nullptr, x, y);
  for (int i = 0; i < 32 * N; ++i) REQUIRE(to<float>(y[i]) == static_cast<float>(i % 200));
  cudaFree(x);
  cudaFree(y);
}

}  // namespace

TEST_CASE("launch: elements move unchanged in words of every size", "[cuda]") {
  check_copy<__half, 1>();
  check_copy<__nv_bfloat16, 2>();
  check_copy<__half, 4>();
  check_copy<__nv_bfloat16, 8>();
  check_copy<__half, 16>();
  check_copy<float, 1>();
  check_copy<float, 2>();
  check_copy<float, 4>();
  check_copy<float, 8>();
  check_copy<double, 1>();
  check_copy<double, 2>();
  check_copy<double, 4>();
}

TEST_CASE("launch: a launch that CUDA refuses is a CudaError", "[cuda]") {
  std::vector<float> y(64);
  const auto refused = [&](const LaunchShape& shape, const char* text) {
    CHECK_THROWS_WITH(launch(fill_dynamic, shape, nullptr, y.data()),
                      support::contains_text("launch: ") && support::contains_text(text));
    CHECK_THROWS_AS(launch(fill_dynamic, shape, nullptr, y.data()), evenkeel::CudaError);
    CHECK(cudaGetLastError() == cudaSuccess);
  };
  refused({.grid = 0},
          "cudaLaunchKernelEx: grid 0, block 32, 0 bytes of dynamic shared memory, cluster 1: invalid "
          "configuration argument");
  refused({.grid = 1u << 31}, "invalid configuration argument");
  refused({.block = 0}, "invalid configuration argument");
  refused({.block = 1025}, "invalid configuration argument");
  refused({.grid = 3, .cluster = 2}, "cluster misconfiguration");
  refused({.grid = 16, .cluster = 16}, "cluster misconfiguration");
  refused({.shared = 227 * 1024 + 1}, "cudaFuncSetAttribute: invalid argument");
}

TEST_CASE("launch: more than 48 KiB are asked for once for each kernel and device", "[cuda]") {
  std::vector<float> y(32);
  const auto run = [&](std::size_t bytes) {
    launch(fill_dynamic, {.shared = bytes}, nullptr, y.data());
    CHECK(y[0] == 31);
  };
  emulator::record() = {};
  run(48 * 1024);
  CHECK(emulator::record().calls == std::map<std::string, int>{{"cudaLaunchKernelEx", 1}});
  run(100 * 1024);
  run(100 * 1024);
  run(60 * 1024);
  CHECK(calls("cudaFuncSetAttribute") == 1);
  run(227 * 1024);
  CHECK(calls("cudaFuncSetAttribute") == 2);
  emulator::device().ordinal = 1;
  run(100 * 1024);
  run(100 * 1024);
  emulator::device().ordinal = 0;
  CHECK(calls("cudaFuncSetAttribute") == 3);
  CHECK(calls("cudaLaunchKernelEx") == 7);
  CHECK(calls("cudaStreamSynchronize") == 0);
}

TEST_CASE("emulator: a kernel that was not allowed more than 48 KiB is refused", "[cuda]") {
  cudaLaunchConfig_t config{};
  config.dynamicSmemBytes = 48 * 1024 + 1;
  CHECK(cudaLaunchKernelEx(&config, too_much_static) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
}

TEST_CASE("emulator: faults name the rule and the place", "[cuda]") {
  std::vector<float> y(64);
  const auto fault = [](auto kernel, const LaunchShape& shape, const char* text, auto... arguments) {
    CHECK_THROWS_WITH(launch(kernel, shape, nullptr, arguments...), support::contains_text(text));
    CHECK_THROWS_AS(launch(kernel, shape, nullptr, arguments...), emulator::KernelFault);
  };
  fault(too_much_static, {}, "more than 48 KiB of static shared memory [block 0, thread");
  fault(too_much_together, {.shared = 225 * 1024}, "more than 227 KiB of static and dynamic shared memory");
  fault(absent_lane, {.block = 40}, "the mask names a lane that does not exist");
  fault(caller_not_in_mask, {}, "__syncwarp at emulator_test.cpp:");
  fault(caller_not_in_mask, {}, "the calling lane is not in the mask");
  fault(source_not_in_mask, {}, "the source lane is not in the mask", y.data());
  fault(odd_width, {}, "the width is not a power of two up to 32", y.data());
  fault(misaligned_atomic, {}, "an atomic at a misaligned address", reinterpret_cast<unsigned char*>(y.data()));
  fault(rank_outside, {.grid = 2, .cluster = 2}, "the cluster has no block of rank 2", y.data());
  fault(map_of_global_memory, {}, "the address is not in shared memory", y.data());
  launch(fill_dynamic, {.shared = 128}, nullptr, y.data());  // and the next launch is none the worse
  CHECK(y[0] == 31);
}

TEST_CASE("emulator: clusters are neighbouring blocks", "[cuda]") {
  std::vector<unsigned> rank(8, 99);
  launch(ranks, {.grid = 8, .cluster = 4}, nullptr, rank.data());
  CHECK(rank == std::vector<unsigned>{0, 1, 2, 3, 0, 1, 2, 3});
}

TEST_CASE("emulator: the record names the kernels that ran", "[cuda]") {
  emulator::record() = {};
  std::vector<double> out(128);
  std::vector<float> y(32);
  launch(shuffles<double>, {}, nullptr, out.data());
  launch(shuffles<double>, {}, nullptr, out.data());
  launch(fill_dynamic, {.shared = 128}, nullptr, y.data());
  CHECK(emulator::record().kernels == std::map<std::string, int>{{"void emulator_test::shuffles<double>(double*)", 2},
                                                                 {"emulator_test::fill_dynamic(float*)", 1}});
}

TEST_CASE("emulator: device memory is of NaN, and copies and fills work", "[cuda]") {
  float* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 3 * sizeof(float)) == cudaSuccess);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
  for (int i = 0; i < 3; ++i) CHECK(std::isnan(memory[i]));
  const float values[3] = {1, 2, 3};
  float back[3] = {};
  CHECK(cudaMemcpyAsync(memory, values, sizeof values, cudaMemcpyHostToDevice, nullptr) == cudaSuccess);
  CHECK(cudaMemsetAsync(memory, 0, sizeof(float), nullptr) == cudaSuccess);
  CHECK(cudaMemcpyAsync(back, memory, sizeof back, cudaMemcpyDeviceToHost, nullptr) == cudaSuccess);
  CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
  CHECK(back[0] == 0);
  CHECK(back[2] == 3);
  CHECK(cudaFree(memory) == cudaSuccess);
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
  CHECK(value == 227 * 1024);
}
