// The seam as nvcc sees it. Without a GPU the launches are refused, which is checked as well.

#include "evenkeel/detail/launch.cuh"
#include "support/catch.hpp"

#include <vector>

using namespace evenkeel::detail;

namespace {

/// y = x for each element, by way of every word of the seam.
template <class T, class A, int N>
__global__ void __launch_bounds__(64) copy_kernel(const T* x, T* y, unsigned* ticket) {
  EVENKEEL_SHARED(A, partials, 2);
  EVENKEEL_DYNAMIC_SHARED(A, scratch);
  const unsigned first = N * (blockIdx.x * 64 + threadIdx.x);
  const Elements<T, N> in = load_elements<N>(x + first);
  partials[threadIdx.x / 32] = 0;
  scratch[threadIdx.x] = __shfl_xor_sync(0xffffffffu, partials[threadIdx.x / 32], 1);
  cluster_sync();
  __syncwarp();
  const A zero = *cluster_map(partials, cluster_rank()) + scratch[threadIdx.x];
  Elements<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = to<T>(static_cast<A>(static_cast<T>(to<A>(in[i]))) + zero);
  store_elements(y + first, out);
  __syncthreads();
  __threadfence();
  if (threadIdx.x == 0) atomicAdd(ticket, 1u);
}

template <class T>
T* device_memory(std::size_t count) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, count * sizeof(T)), "launch_test", "cudaMalloc");
  return static_cast<T*>(memory);
}

bool has_device() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();
  return found;
}

template <class T, class A, int N>
void check_copy() {
  constexpr unsigned blocks = 3;
  constexpr std::size_t count = blocks * 64 * N;
  const LaunchShape shape{.grid = blocks, .block = 64, .shared = 64 * sizeof(A)};
  if (!has_device()) {
    T* const none = nullptr;
    unsigned* const no_ticket = nullptr;
    CHECK_THROWS_AS(launch(copy_kernel<T, A, N>, shape, nullptr, none, none, no_ticket), evenkeel::CudaError);
    return;
  }
  std::vector<T> x(count), y(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<T>(static_cast<float>(i % 200));
  T *const device_x = device_memory<T>(count), *const device_y = device_memory<T>(count);
  unsigned* const ticket = device_memory<unsigned>(1);
  cudaMemset(ticket, 0, sizeof *ticket);
  cudaMemcpy(device_x, x.data(), count * sizeof(T), cudaMemcpyHostToDevice);
  launch(copy_kernel<T, A, N>, shape, nullptr, device_x, device_y, ticket);
  check_cuda(cudaMemcpy(y.data(), device_y, count * sizeof(T), cudaMemcpyDeviceToHost), "launch_test", "cudaMemcpy");
  unsigned tickets = 0;
  cudaMemcpy(&tickets, ticket, sizeof tickets, cudaMemcpyDeviceToHost);
  CHECK(tickets == blocks);
  for (std::size_t i = 0; i < count; ++i) REQUIRE(static_cast<float>(y[i]) == static_cast<float>(x[i]));
  cudaFree(device_x);
  cudaFree(device_y);
  cudaFree(ticket);
}

}  // namespace

TEST_CASE("launch: elements move unchanged on the device", "[cuda]") {
  check_copy<__half, float, 1>();
  check_copy<__half, float, 8>();
  check_copy<__nv_bfloat16, float, 2>();
  check_copy<__nv_bfloat16, double, 16>();
  check_copy<float, float, 4>();
  check_copy<double, double, 1>();
  check_copy<double, double, 4>();
}

TEST_CASE("launch: what CUDA says is in the error", "[cuda]") {
  float* const none = nullptr;
  unsigned* const no_ticket = nullptr;
  CHECK_THROWS_WITH(launch(copy_kernel<float, float, 4>, {.grid = 1, .block = 2000}, nullptr, none, none, no_ticket),
                    support::contains_text("launch: cudaLaunchKernelEx: grid 1, block 2000, 0 bytes of dynamic shared "
                                           "memory, cluster 1: "));
}
