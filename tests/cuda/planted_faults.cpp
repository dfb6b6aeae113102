// Kernels that are sound, or have one fault each: proof that the emulator sees what it claims to see.
//
//   planted_faults NAME sound|planted
//
// Runs the kernel in several orders. Exit status 1, and a line that says why, at the first wrong result or KernelFault;
// sanitizers speak for themselves. CMakeLists.txt lists which build must say what.

#include "evenkeel/detail/launch.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>

using namespace evenkeel::detail;

namespace {

constexpr int threads = 64;
constexpr int blocks = 4;
constexpr unsigned all_lanes = 0xffffffffu;

struct Arguments {
  const float* x;    // (blocks, threads)
  float* y;          // (blocks, threads)
  float* workspace;  // (blocks, threads)
  unsigned* ticket;
};

EVENKEEL_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
EVENKEEL_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
EVENKEEL_DEVICE unsigned place() { return blockIdx.x * threads + threadIdx.x; }

EVENKEEL_DEVICE float warp_total(float value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(all_lanes, value, lanes);
  return value;
}

EVENKEEL_DEVICE float block_total(float value, float* partials) {
  value = warp_total(value);
  if (lane() == 0) partials[warp()] = value;
  __syncthreads();
  value = partials[0] + partials[1];
  __syncthreads();
  return value;
}

}  // namespace

// Every kernel writes, to all of its block's part of y, the total of x over its block, cluster or grid.
// Not in the unnamed namespace: the sanitizers' reports and the emulator's record name them.

template <bool planted>
__global__ void __launch_bounds__(threads) no_barrier_after_partials(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  const float total = warp_total(a.x[place()]);
  if (lane() == 0) partials[warp()] = total;
  if (!planted) __syncthreads();
  a.y[place()] = partials[0] + partials[1];
}

template <bool planted>
__global__ void __launch_bounds__(threads) no_barrier_before_reuse(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  float total = 0;
  for (int round = 1; round <= 2; ++round) {
    const float part = warp_total(a.x[place()] * static_cast<float>(round));
    if (lane() == 0) partials[warp()] = part;
    __syncthreads();
    total += (partials[0] + partials[1]) / 3;
    if (!planted) __syncthreads();
  }
  a.y[place()] = total;
}

// A shuffle brings values, but no order of memory accesses.
template <bool planted>
__global__ void __launch_bounds__(threads) shuffle_for_a_barrier(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  EVENKEEL_SHARED(float, values, threads);
  values[threadIdx.x] = a.x[place()];
  const unsigned neighbour = __shfl_xor_sync(all_lanes, threadIdx.x, 1);
  if (!planted) __syncwarp();
  a.y[place()] = block_total(values[neighbour], partials);
}

template <bool planted>
__global__ void __launch_bounds__(threads) shared_memory_not_written(Arguments a) {
  EVENKEEL_SHARED(float, partials, 3);
  const float total = warp_total(a.x[place()]);
  if (lane() == 0) partials[warp()] = total;
  if (!planted && threadIdx.x == 0) partials[2] = 0;
  __syncthreads();
  a.y[place()] = partials[0] + partials[1] + partials[2];
}

template <bool planted>
__global__ void __launch_bounds__(threads) exit_before_shuffle(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  if (planted && lane() == 31) return;
  a.y[place()] = block_total(a.x[place()], partials);
}

template <bool planted>
__global__ void __launch_bounds__(threads) barrier_in_uneven_loop(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  for (int round = planted ? warp() : 0; round < 2; ++round) {
    const float total = warp_total(a.x[place()]);
    if (lane() == 0) partials[warp()] = total;
    __syncthreads();
  }
  a.y[place()] = partials[0] + partials[1];
}

template <bool planted>
__global__ void __launch_bounds__(threads) divergent_shuffle(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  float value = a.x[place()];
  if (planted && lane() % 2 == 0)
    value += __shfl_xor_sync(all_lanes, value, 1);
  else
    value += __shfl_xor_sync(all_lanes, value, 1);
  a.y[place()] = block_total(value / 2, partials);
}

template <bool planted>
__global__ void __launch_bounds__(threads) deadlock(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  if (planted && lane() < 16)
    __syncwarp();
  else
    __syncthreads();
  a.y[place()] = block_total(a.x[place()], partials);
}

template <bool planted>
__global__ void __launch_bounds__(threads) shared_index_off_by_one(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  constexpr int first = planted ? 1 : 0;
  const float total = warp_total(a.x[place()]);
  if (lane() == 0) partials[first + warp()] = total;
  __syncthreads();
  a.y[place()] = partials[first] + partials[first + 1];
}

template <bool planted>
__global__ void __launch_bounds__(threads) dynamic_shared_index_off_by_one(Arguments a) {
  EVENKEEL_DYNAMIC_SHARED(float, partials);
  constexpr int first = planted ? 1 : 0;
  const float total = warp_total(a.x[place()]);
  if (lane() == 0) partials[first + warp()] = total;
  __syncthreads();
  a.y[place()] = partials[first] + partials[first + 1];
}

template <bool planted>
__global__ void __launch_bounds__(threads) access_past_the_row(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  const unsigned last = planted ? threads : threads - 1;
  float value = 0;
  for (unsigned i = threadIdx.x; i <= last; i += threads) value += a.x[blockIdx.x * threads + i];
  a.y[place()] = block_total(value, partials);
}

template <bool planted>
__global__ void __launch_bounds__(threads) misaligned_load(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  float value = 0;
  if (threadIdx.x < threads / 4) {
    const auto row = load_elements<4>(a.x + blockIdx.x * threads + 4 * threadIdx.x + (planted ? 1 : 0));
#pragma unroll
    for (int i = 0; i < 4; ++i) value += row[i];
  }
  a.y[place()] = block_total(value, partials);
}

template <bool planted>
__global__ void __launch_bounds__(threads) misaligned_store(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  Elements<float, 4> row;
  const float total = block_total(a.x[place()], partials);
#pragma unroll
  for (int i = 0; i < 4; ++i) row[i] = total;
  if (threadIdx.x < threads / 4) store_elements(a.y + blockIdx.x * threads + 4 * threadIdx.x + (planted ? 1 : 0), row);
}

// The block that takes the last ticket adds what all have left in the workspace.
template <bool fence_before, bool fence_after, bool fence_by_all>
EVENKEEL_DEVICE void last_block(Arguments a) {
  EVENKEEL_SHARED(bool, last, 1);
  a.workspace[place()] = a.x[place()];
  __syncthreads();
  if (threadIdx.x == 0) {
    if (fence_before) __threadfence();
    last[0] = atomicAdd(a.ticket, 1u) == gridDim.x - 1;
    if (fence_after) __threadfence();
  }
  __syncthreads();
  if (!last[0]) return;
  if (fence_by_all) __threadfence();
  float total = 0;
  for (int i = 0; i < blocks * threads; ++i) total += a.workspace[i];
  for (int block = 0; block < blocks; ++block) a.y[static_cast<unsigned>(block) * threads + threadIdx.x] = total;
}

template <bool planted>
__global__ void __launch_bounds__(threads) no_fence_before_ticket(Arguments a) {
  last_block<!planted, true, false>(a);
}
template <bool planted>
__global__ void __launch_bounds__(threads) no_fence_after_ticket(Arguments a) {
  last_block<true, !planted, false>(a);
}
// Thread 0 took the ticket: that the others fence, behind the barrier, orders nothing.
template <bool planted>
__global__ void __launch_bounds__(threads) fence_only_behind_the_barrier(Arguments a) {
  last_block<true, !planted, planted>(a);
}

// Every block of the cluster tells all of them its total.
template <bool barrier_before, bool barrier_after>
EVENKEEL_DEVICE void tell_the_cluster(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  EVENKEEL_SHARED(float, totals, 2);
  const float total = block_total(a.x[place()], partials);
  if (barrier_before) cluster_sync();
  if (threadIdx.x < 2) *cluster_map(totals + cluster_rank(), threadIdx.x) = total;
  if (barrier_after) cluster_sync();
  a.y[place()] = totals[0] + totals[1];
  cluster_sync();
}

template <bool planted>
__global__ void __launch_bounds__(threads) no_cluster_barrier_before_remote_write(Arguments a) {
  tell_the_cluster<!planted, true>(a);
}
template <bool planted>
__global__ void __launch_bounds__(threads) no_cluster_barrier_after_remote_write(Arguments a) {
  tell_the_cluster<true, !planted>(a);
}

// Every block of the cluster reads the other's total, until when that one must not end.
template <bool mapped_early, bool barrier_at_end>
EVENKEEL_DEVICE void ask_the_cluster(Arguments a) {
  EVENKEEL_SHARED(float, partials, 2);
  EVENKEEL_SHARED(float, totals, 1);
  const float total = block_total(a.x[place()], partials);
  cluster_sync();
  const float* other = cluster_map(totals, cluster_rank() ^ 1u);
  if (threadIdx.x == 0) totals[0] = total;
  cluster_sync();
  if (!barrier_at_end && cluster_rank() == 1) __syncthreads();  // time for the other block to end
  if (!mapped_early) other = cluster_map(totals, cluster_rank() ^ 1u);
  a.y[place()] = totals[0] + *other;
  if (barrier_at_end) cluster_sync();
}

template <bool planted>
__global__ void __launch_bounds__(threads) remote_read_after_the_end(Arguments a) {
  ask_the_cluster<true, !planted>(a);
}
template <bool planted>
__global__ void __launch_bounds__(threads) cluster_map_after_the_end(Arguments a) {
  ask_the_cluster<false, !planted>(a);
}

namespace {

using Kernel = void (*)(Arguments);

struct Case {
  const char* name;
  Kernel sound, planted;
  int group = 1;  // blocks that a total is of
  unsigned cluster = 1;
};

#define CASE(name, ...) \
  { #name, name < false>, name < true>, __VA_ARGS__ }
const Case cases[] = {
    CASE(no_barrier_after_partials, 1),
    CASE(no_barrier_before_reuse, 1),
    CASE(shuffle_for_a_barrier, 1),
    CASE(shared_memory_not_written, 1),
    CASE(exit_before_shuffle, 1),
    CASE(barrier_in_uneven_loop, 1),
    CASE(divergent_shuffle, 1),
    CASE(deadlock, 1),
    CASE(shared_index_off_by_one, 1),
    CASE(dynamic_shared_index_off_by_one, 1),
    CASE(access_past_the_row, 1),
    CASE(misaligned_load, 1),
    CASE(misaligned_store, 1),
    CASE(no_fence_before_ticket, blocks),
    CASE(no_fence_after_ticket, blocks),
    CASE(fence_only_behind_the_barrier, blocks),
    CASE(no_cluster_barrier_before_remote_write, 2, 2),
    CASE(no_cluster_barrier_after_remote_write, 2, 2),
    CASE(remote_read_after_the_end, 2, 2),
    CASE(cluster_map_after_the_end, 2, 2),
};
#undef CASE

struct Free {
  void operator()(void* memory) const { cudaFree(memory); }
};
template <class T>
std::unique_ptr<T, Free> device_memory(std::size_t count) {
  T* memory = nullptr;
  check_cuda(cudaMalloc(&memory, count * sizeof(T)), "planted_faults", "cudaMalloc");
  return std::unique_ptr<T, Free>(memory);
}

// Small whole numbers, so that every order of additions gives the same total.
float value_at(int i) { return static_cast<float>(i % 11 + 3 * (i / threads)); }

bool right_result(const Case& c, Kernel kernel) {
  constexpr int count = blocks * threads;
  const auto x = device_memory<float>(count), y = device_memory<float>(count), workspace = device_memory<float>(count);
  const auto ticket = device_memory<unsigned>(1);
  for (int i = 0; i < count; ++i) x.get()[i] = value_at(i);
  *ticket = 0;
  launch(kernel, {.grid = blocks, .block = threads, .shared = 2 * sizeof(float), .cluster = c.cluster}, nullptr,
         Arguments{x.get(), y.get(), workspace.get(), ticket.get()});
  for (int i = 0; i < count; ++i) {
    const int group = c.group * threads, first = i / group * group;
    float total = 0;
    for (int k = first; k < first + group; ++k) total += value_at(k);
    if (!(std::abs(y.get()[i] - total) < 1e-3f)) {
      std::printf("wrong result: %s has %g at %d, not %g\n", c.name, static_cast<double>(y.get()[i]), i,
                  static_cast<double>(total));
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "planted_faults NAME sound|planted\n");
    return 2;
  }
  const Case* const found = std::find_if(std::begin(cases), std::end(cases),
                                         [&](const Case& c) { return std::strcmp(c.name, argv[1]) == 0; });
  if (found == std::end(cases)) {
    std::fprintf(stderr, "planted_faults: no fault is called %s\n", argv[1]);
    return 2;
  }
  const Kernel kernel = std::strcmp(argv[2], "planted") == 0 ? found->planted : found->sound;
  using emulator::Order;
  // ThreadSanitizer needs no certain order, and its identities are costly.
  const unsigned seeds = emulator::thread_sanitizer ? 1 : 2;
  for (const Order order : {Order::forward, Order::reverse, Order::random, Order::skew}) {
    for (unsigned seed = 1; seed <= seeds; ++seed) {
      emulator::options() = {
          .order = order, .seed = seed, .resident = seed, .fresh_identities = found->group == blocks};
      if (!right_result(*found, kernel)) return 1;
    }
  }
  return 0;
} catch (const emulator::KernelFault& fault) {
  std::printf("KernelFault: %s\n", fault.what());
  return 1;
}
