/// The one file that knows whether nvcc or an emulator compiles a kernel. No Eigen header.
///
/// A kernel is CUDA in the words of this file: pointers, sizes and math structs go in, `threadIdx`, `__shfl_xor_sync`,
/// `__syncwarp`, `__syncthreads`, `__threadfence` and `atomicAdd` are CUDA's own, and everything else that differs
/// between the two worlds stands here.
///
///     template <class T>
///     __global__ void __launch_bounds__(32) twice(const T* x, T* y, int n) {
///       const int i = int(blockIdx.x * 32 + threadIdx.x);
///       if (i < n) y[i] = to<T>(2 * to<float>(x[i]));
///     }
///     launch(twice<__half>, {.grid = 8, .block = 32}, stream, x, y, n);
///
/// The emulator runs kernels on a machine without a GPU, for tests. Where nvcc does not compile the unit,
/// EVENKEEL_CUDA_EMULATOR names its header, -DEVENKEEL_CUDA_EMULATOR='"support/cuda/emulator.hpp"'; it brings the CUDA
/// names above, the part of CUDA's host functions that is used, and namespace `emulator`. Kernels are full of
/// `#pragma unroll`, which g++ does not know (-Wno-unknown-pragmas), and read memory as words of other types
/// (-fno-strict-aliasing).
#pragma once

#include "evenkeel/error.hpp"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#elif defined(EVENKEEL_CUDA_EMULATOR)
#include EVENKEEL_CUDA_EMULATOR
#else
#error "evenkeel: this unit holds CUDA kernels; compile this file with nvcc"
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#if defined(__CUDACC__)
/// Marks a function that kernels call.
#define EVENKEEL_DEVICE __device__ __forceinline__
/// A shared array of a constant number of elements, one per block.
#define EVENKEEL_SHARED(Type, name, count) __shared__ Type name[count]
/// The shared memory whose size LaunchShape::shared gives, as a pointer. It is aligned to 16 bytes.
#define EVENKEEL_DYNAMIC_SHARED(Type, name)                                       \
  extern __shared__ __align__(16) unsigned char evenkeel_dynamic_shared_memory[]; \
  Type* const name = reinterpret_cast<Type*>(evenkeel_dynamic_shared_memory)
#else
#define EVENKEEL_DEVICE inline
#define EVENKEEL_SHARED(Type, name, count)                                  \
  Type(&name)[count] = *static_cast<Type(*)[count]>(emulator::shared_array( \
      [] {                                                                  \
        static char place;                                                  \
        return static_cast<const void*>(&place);                            \
      }(),                                                                  \
      sizeof(Type) * (count)))
#define EVENKEEL_DYNAMIC_SHARED(Type, name) Type* const name = static_cast<Type*>(emulator::dynamic_shared())
#endif

namespace evenkeel::detail {

/// How a kernel is launched. Everything lies along x.
struct LaunchShape {
  unsigned grid = 1;       ///< blocks
  unsigned block = 32;     ///< threads of a block
  std::size_t shared = 0;  ///< bytes of dynamic shared memory of a block
  unsigned cluster = 1;    ///< blocks of a cluster, at most 8; more than 1 needs sm_90
};

/// Throws CudaError "function: call: CUDA's message" unless the call succeeded.
inline void check_cuda(cudaError_t status, const char* function, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or whoever asks next would be told of it again
  throw CudaError(error_text(function, call, ": ", cudaGetErrorString(status)));
}

/// Dynamic shared memory that a kernel gets without asking.
inline constexpr std::size_t default_shared_bytes = 48 * 1024;

/// Asks for more than default_shared_bytes, once for each kernel and device, and again only for more than before.
inline void allow_shared_bytes(const void* kernel, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, std::size_t> allowed;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "launch", "cudaGetDevice");
  const std::lock_guard lock(mutex);
  std::size_t& known = allowed[{kernel, device}];
  if (bytes <= known) return;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
             "launch", "cudaFuncSetAttribute");
  known = bytes;
}

/// Puts the kernel into the stream; neither waits nor asks the device for anything, so it may be captured in a graph.
/// Throws CudaError where the launch fails. What goes wrong while the kernel runs is reported by a later call.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            const Arguments&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a kernel needs one argument for each parameter");
  if (shape.shared > default_shared_bytes) allow_shared_bytes(reinterpret_cast<const void*>(kernel), shape.shared);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.grid);
  config.blockDim = dim3(shape.block);
  config.dynamicSmemBytes = shape.shared;
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  if (shape.cluster > 1) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = shape.cluster;
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  if (status == cudaSuccess) return;
  const std::string call = error_text("cudaLaunchKernelEx", "grid ", shape.grid, ", block ", shape.block, ", ",
                                      shape.shared, " bytes of dynamic shared memory, cluster ", shape.cluster);
  check_cuda(status, "launch", call.c_str());
}

/// This block's place in its cluster; 0 where there are no clusters (before sm_90).
EVENKEEL_DEVICE unsigned cluster_rank() {
#if !defined(__CUDACC__)
  return emulator::cluster_rank();
#elif __CUDA_ARCH__ >= 900
  return __clusterRelativeBlockRank();
#else
  return 0;
#endif
}

/// A barrier for all threads of the cluster, which orders their memory accesses too. A kernel needs one before its first
/// access to another block's shared memory, since that block may not run yet, and one after the last, since it may be
/// gone.
#if !defined(__CUDACC__)
inline void cluster_sync(emulator::Place place = emulator::here()) { emulator::cluster_sync(place); }
#else
EVENKEEL_DEVICE void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#endif
}
#endif

/// Where the block of that rank has what this block has at `shared`, a pointer into shared memory.
template <class T>
EVENKEEL_DEVICE T* cluster_map(T* shared, [[maybe_unused]] unsigned rank) {
#if !defined(__CUDACC__)
  return static_cast<T*>(emulator::cluster_map(shared, rank));
#elif __CUDA_ARCH__ >= 900
  return static_cast<T*>(__cluster_map_shared_rank(shared, rank));
#else
  return shared;
#endif
}

/// Whether it holds in any lane of the warp. All lanes must take part.
EVENKEEL_DEVICE bool any_lane(bool holds) {
#if defined(__CUDACC__)
  return __any_sync(0xffffffffu, holds);
#else
  int any = holds;
  for (int offset = 16; offset > 0; offset /= 2) any |= __shfl_xor_sync(0xffffffffu, any, offset);
  return any != 0;
#endif
}

/// The upper 64 bits of a product.
EVENKEEL_DEVICE std::uint64_t high_product(std::uint64_t a, std::uint64_t b) {
#if defined(__CUDACC__)
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b >> 64);
#endif
}

/// The value in the type To, rounded to nearest even where To is narrower. From and To: double, float, __half,
/// __nv_bfloat16, at least one of them float or double.
template <class To, class From>
EVENKEEL_DEVICE To to(From value) {
  return static_cast<To>(value);
}

/// Two numbers rounded to T, __half or __nv_bfloat16, the first one in the lower half.
template <class T>
EVENKEEL_DEVICE unsigned packed_pair(float low, float high) {
#if defined(__CUDACC__)
  const auto pair = [&] {
    if constexpr (std::is_same_v<T, __half>)
      return __floats2half2_rn(low, high);
    else
      return __floats2bfloat162_rn(low, high);
  }();
#else
  const T pair[2] = {to<T>(low), to<T>(high)};
#endif
  unsigned bits;
  static_assert(sizeof(pair) == sizeof(bits));
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

/// The type that moves that many bytes at once.
template <std::size_t bytes>
struct Word;
template <>
struct Word<16> {
  using Type = uint4;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<4> {
  using Type = unsigned;
};
template <>
struct Word<2> {
  using Type = unsigned short;
};
template <>
struct Word<1> {
  using Type = unsigned char;
};

/// A word of global memory that no thread writes while the kernel runs: it may be read early, whatever is written.
template <class Word>
EVENKEEL_DEVICE Word load_constant_word(const Word* from) {
#if defined(__CUDACC__)
  return __ldg(from);
#else
  return *from;
#endif
}

/// Writes a word of global memory, in one access.
template <class Word>
EVENKEEL_DEVICE void store_word(Word* to, const Word& word) {
#if defined(__CUDACC__)
  __stwb(to, word);
#else
  *to = word;
#endif
}

/// N neighbours in memory, which move as whole words: one of up to 16 bytes, or several of 16.
template <class T, int N>
struct Elements {
  static_assert(N > 0 && (N & (N - 1)) == 0, "the number of elements is a power of two");
  static constexpr std::size_t bytes = sizeof(T) * N;
  static constexpr std::size_t alignment = bytes < 16 ? bytes : 16;  ///< of their address
  static constexpr int words = static_cast<int>(bytes / alignment);
  static constexpr int per_word = N / words;
  using Word = typename detail::Word<alignment>::Type;

  alignas(alignment) T value[N];

  EVENKEEL_DEVICE T& operator[](int i) { return value[i]; }
  EVENKEEL_DEVICE const T& operator[](int i) const { return value[i]; }
};

/// Reads N elements. The address must be a multiple of Elements<T, N>::alignment.
template <int N, class T>
EVENKEEL_DEVICE Elements<T, N> load_elements(const T* from) {
  using Word = typename Elements<T, N>::Word;
  Elements<T, N> elements;
#pragma unroll
  for (int k = 0; k < Elements<T, N>::words; ++k) {
    const Word word = reinterpret_cast<const Word*>(from)[k];
    memcpy(elements.value + k * Elements<T, N>::per_word, &word, sizeof(Word));
  }
  return elements;
}

/// Writes N elements. The address must be a multiple of Elements<T, N>::alignment.
template <class T, int N>
EVENKEEL_DEVICE void store_elements(T* to, const Elements<T, N>& elements) {
  using Word = typename Elements<T, N>::Word;
#pragma unroll
  for (int k = 0; k < Elements<T, N>::words; ++k) {
    Word word;
    memcpy(&word, elements.value + k * Elements<T, N>::per_word, sizeof(Word));
    reinterpret_cast<Word*>(to)[k] = word;
  }
}

}  // namespace evenkeel::detail
