#pragma once

// CUDA's host functions as far as evenkeel uses them, on one device whose memory is the host's. Streams run at once.
// Grids, blocks and clusters lie along x.

#include "support/cuda/schedule.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

using cudaStream_t = struct CUstream_st*;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorInvalidClusterSize = 912
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaLaunchAttributeID { cudaLaunchAttributeIgnore = 0, cudaLaunchAttributeClusterDimension = 4 };

struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace emulator {

// The device that is asked about; a test may change it. An H200 with fewer multiprocessors.
struct Device {
  int ordinal = 0;
  int multiprocessors = 4;
  int threads_per_multiprocessor = 2048;
  int compute_major = 9, compute_minor = 0;
  int shared_bytes_per_multiprocessor = 228 * 1024;
  int shared_bytes_per_block = static_cast<int>(shared_limit);
};
inline Device& device() {
  static Device device;
  return device;
}

// What was called, and how often.
struct Record {
  std::map<std::string, int> calls;    // CUDA's host functions, by name
  std::map<std::string, int> kernels;  // that were launched, by their full names with template arguments
};
inline Record& record() {
  static Record record;
  return record;
}
inline std::mutex& record_mutex() {
  static std::mutex mutex;
  return mutex;
}
inline void count_call(const char* name) {
  const std::lock_guard lock(record_mutex());
  ++record().calls[name];
}

// The kernel's name, from the program's symbols: it must be linked with -rdynamic (CMake's ENABLE_EXPORTS), and the
// kernel have external linkage, with its template arguments.
inline std::string kernel_name(const void* kernel) {
  Dl_info found{};
  if (dladdr(kernel, &found) == 0 || found.dli_sname == nullptr || found.dli_saddr != kernel)
    return "(a kernel without external linkage)";
  char* const readable = abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, nullptr);
  if (readable == nullptr) return found.dli_sname;
  const std::string name = readable;
  std::free(readable);
  return name;
}

inline cudaError_t& last_error() {
  static thread_local cudaError_t last = cudaSuccess;
  return last;
}
inline cudaError_t remember(cudaError_t status) {
  if (status != cudaSuccess) last_error() = status;
  return status;
}

// Dynamic shared memory that cudaFuncSetAttribute has allowed, by kernel and device.
inline std::map<std::pair<const void*, int>, std::size_t>& allowed_shared() {
  static std::map<std::pair<const void*, int>, std::size_t> allowed;
  return allowed;
}

struct Grid {
  unsigned blocks, threads, cluster;
  std::size_t dynamic_bytes;
};

inline unsigned cluster_size(const cudaLaunchConfig_t& config) {
  for (unsigned k = 0; k < config.numAttrs; ++k)
    if (config.attrs[k].id == cudaLaunchAttributeClusterDimension) return config.attrs[k].val.clusterDim.x;
  return 1;
}

inline cudaError_t check_launch(const cudaLaunchConfig_t& config, const void* kernel) {
  const dim3 &grid = config.gridDim, &block = config.blockDim;
  const unsigned cluster = cluster_size(config);
  if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1) return cudaErrorInvalidConfiguration;
  if (grid.x == 0 || grid.x > 0x7fffffffu || block.x == 0 || block.x > 1024) return cudaErrorInvalidConfiguration;
  if (cluster == 0 || cluster > 8 || grid.x % cluster != 0) return cudaErrorInvalidClusterSize;
  const auto allowed = allowed_shared().find({kernel, device().ordinal});
  const std::size_t most = allowed == allowed_shared().end() ? static_shared_limit : allowed->second;
  if (config.dynamicSmemBytes > most) return cudaErrorInvalidValue;
  return cudaSuccess;
}

// The blocks that are one worker's, a few at a time. Returns what went wrong.
inline std::string run_worker(const Grid& grid, const std::function<void()>& kernel, unsigned worker,
                              unsigned workers) {
  const Hidden hidden;
  static thread_local Machine own;
  machine = &own;
  own.options = options();
  own.home = Home();
  own.random = (own.options.seed + 1) * 0x9e3779b97f4a7c15u + worker;
  own.fault.clear();
  own.kernel = kernel;
  blockDim = dim3(grid.threads);
  gridDim = dim3(grid.blocks);
  own.start.release();

  const unsigned together = std::max(1u, own.options.resident) * grid.cluster;
  std::vector<unsigned> starts;
  for (unsigned first = 0; first < grid.blocks; first += together)
    if (first / together % workers == worker) starts.push_back(first);
  if (own.options.order != Order::forward)  // CUDA promises no order of blocks
    for (std::size_t k = starts.size(); k > 1; --k) std::swap(starts[k - 1], starts[own.next_random() % k]);

  std::string fault;
  try {
    for (unsigned first : starts) {
      std::vector<unsigned> indices;
      for (unsigned index = first; index < std::min(grid.blocks, first + together); ++index) indices.push_back(index);
      run_blocks(indices, grid.threads, grid.dynamic_bytes, grid.cluster);
    }
  } catch (const KernelFault& error) {
    fault = error.what();
    own.threads.clear();
  }
  own.end.acquire();
  own.kernel = nullptr;
  own.ended.clear();
  return fault;
}

inline void run_grid(const Grid& grid, const std::function<void()>& kernel) {
  const unsigned workers = thread_sanitizer ? 1 : std::max(1u, options().workers);
  std::vector<std::string> faults(workers);
  if (workers == 1) {
    faults[0] = run_worker(grid, kernel, 0, 1);
  } else {
    std::vector<std::thread> threads;
    for (unsigned worker = 0; worker < workers; ++worker)
      threads.emplace_back([&, worker] { faults[worker] = run_worker(grid, kernel, worker, workers); });
    for (std::thread& thread : threads) thread.join();
  }
  for (const std::string& fault : faults)
    if (!fault.empty()) throw KernelFault(fault);
}

// A graph: the launches of a captured function, with the arguments that they had then.
class Graph {
 public:
  template <class F>
  explicit Graph(const F& f) {
    capturing() = &launches_;
    f();
    capturing() = nullptr;
  }
  void launch() const {
    for (const auto& run : launches_) run();
  }
  std::size_t size() const { return launches_.size(); }
  static std::vector<std::function<void()>>*& capturing() {
    static thread_local std::vector<std::function<void()>>* launches = nullptr;
    return launches;
  }

 private:
  std::vector<std::function<void()>> launches_;
};

}  // namespace emulator

// Runs the grid before it returns. Throws emulator::KernelFault where the kernel does what no kernel may.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  emulator::count_call("cudaLaunchKernelEx");
  const void* const address = reinterpret_cast<const void*>(kernel);
  const cudaError_t status = emulator::check_launch(*config, address);
  if (status != cudaSuccess) return emulator::remember(status);
  {
    const std::string name = emulator::kernel_name(address);
    const std::lock_guard lock(emulator::record_mutex());
    ++emulator::record().kernels[name];
  }
  const std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  const emulator::Grid grid{config->gridDim.x, config->blockDim.x, emulator::cluster_size(*config),
                            config->dynamicSmemBytes};
  if (auto* const graph = emulator::Graph::capturing())
    graph->push_back([=] { emulator::run_grid(grid, [&] { std::apply(kernel, values); }); });
  else
    emulator::run_grid(grid, [&] { std::apply(kernel, values); });
  return cudaSuccess;
}

inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int bytes) {
  emulator::count_call("cudaFuncSetAttribute");
  if (bytes < 0 || static_cast<std::size_t>(bytes) > emulator::shared_limit)
    return emulator::remember(cudaErrorInvalidValue);
  emulator::allowed_shared()[{kernel, emulator::device().ordinal}] = static_cast<std::size_t>(bytes);
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() {
  emulator::count_call("cudaGetLastError");
  return std::exchange(emulator::last_error(), cudaSuccess);
}

inline const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorInvalidClusterSize:
      return "cluster misconfiguration";
  }
  return "unrecognized error code";
}

inline cudaError_t cudaGetDevice(int* ordinal) {
  emulator::count_call("cudaGetDevice");
  *ordinal = emulator::device().ordinal;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  emulator::count_call("cudaDeviceGetAttribute");
  const emulator::Device& device = emulator::device();
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = device.multiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = device.threads_per_multiprocessor;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = device.compute_major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = device.compute_minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = device.shared_bytes_per_multiprocessor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = device.shared_bytes_per_block;
      return cudaSuccess;
  }
  return emulator::remember(cudaErrorInvalidValue);
}

inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  emulator::count_call("cudaMalloc");
  *memory = emulator::poisoned_memory(bytes, 256).release();
  return *memory != nullptr || bytes == 0 ? cudaSuccess : emulator::remember(cudaErrorMemoryAllocation);
}
template <class T>
cudaError_t cudaMalloc(T** memory, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(memory), bytes);
}

inline cudaError_t cudaFree(void* memory) {
  emulator::count_call("cudaFree");
  std::free(memory);
  return cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t = {}) {
  emulator::count_call("cudaMemcpyAsync");
  if (bytes != 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t = {}) {
  emulator::count_call("cudaMemsetAsync");
  if (bytes != 0) std::memset(memory, value, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaDeviceSynchronize() {
  emulator::count_call("cudaDeviceSynchronize");
  if (emulator::Graph::capturing() != nullptr) return emulator::remember(cudaErrorStreamCaptureUnsupported);
  return cudaSuccess;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  emulator::count_call("cudaStreamSynchronize");
  return cudaSuccess;
}
