// Kernels for a test of check.py: one that is sound, and one for each fault that it must find. They bear the names of
// evenkeel's row kernels, by which check.py knows what to expect.

#include <cuda_runtime.h>

namespace fault {
struct None;
struct Spill;
struct LocalArray;
struct NarrowLoads;
struct OneLoadMore;
struct OneStoreLess;
struct GenericAccess;
struct DoubleArithmetic;
struct DoubleConversion;
struct TooManyRegisters;
}  // namespace fault

namespace evenkeel {
struct None {};
namespace detail {

enum class RowScope { lanes };
template <class... T>
struct List {};
template <class T>
struct DeviceRows {};
template <class A, class Fault>
struct RmsForward {};
template <class Math, class Inputs, class Parameters, class Outputs, class Known, class Kept>
struct DevicePass;

template <class A, class B>
constexpr bool same = false;
template <class A>
constexpr bool same<A, A> = true;

/// 64 values that are all needed at once.
__device__ __forceinline__ void keep_many(const float* x, float* y) {
  float value[64], sum = 0;
#pragma unroll
  for (int i = 0; i < 64; ++i) sum += value[i] = x[i * 32 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 64; ++i) y[i * 32 + threadIdx.x] = value[i] * sum;
}

/// What a row kernel of one access does to memory: y = x * weight.
template <class Pass, RowScope Scope, int V, int Packs, int Bound, int Blocks>
struct Body;
template <class Fault, RowScope Scope, int V, int Packs, int Bound, int Blocks>
struct Body<DevicePass<RmsForward<float, Fault>, List<DeviceRows<const float>>, List<const float*>,
                       List<DeviceRows<float>>, None, None>,
            Scope, V, Packs, Bound, Blocks> {
  static __device__ void run(const float* x, const float* weight, float* y, float** memory, int n) {
    const int i = static_cast<int>(threadIdx.x);
    if constexpr (same<Fault, fault::Spill> || same<Fault, fault::TooManyRegisters>) {
      keep_many(x, y);
    } else {
      const float4 a = reinterpret_cast<const float4*>(x)[i], w = reinterpret_cast<const float4*>(weight)[i];
      float4 b = make_float4(a.x * w.x, a.y * w.y, a.z * w.z, a.w * w.w);
      if constexpr (same<Fault, fault::LocalArray>) {
        float value[32];
        for (int k = 0; k < 32; ++k) value[k] = x[k * n];
        for (int k = 0; k < n; ++k) value[k * 5 % 32] += value[k % 32];
        b.x += value[n % 32];
      }
      if constexpr (same<Fault, fault::NarrowLoads>) {
        b.y += static_cast<float>(reinterpret_cast<const short*>(x)[i + n]);
      }
      if constexpr (same<Fault, fault::OneLoadMore>) {
        const float4 more = reinterpret_cast<const float4*>(x)[i + n];
        b = make_float4(b.x + more.x, b.y + more.y, b.z + more.z, b.w + more.w);
      }
      if constexpr (same<Fault, fault::GenericAccess>) {
        __shared__ float shared[Bound];
        shared[i] = b.x;
        __syncthreads();
        float* const either = n > 3 ? shared : memory[0];
        b.x += either[(i + 1) % Bound];
      }
      if constexpr (same<Fault, fault::DoubleArithmetic>) b.w = static_cast<float>(b.w * 1.1);
      if constexpr (same<Fault, fault::DoubleConversion>) *reinterpret_cast<double*>(memory) = b.w;
      if constexpr (same<Fault, fault::OneStoreLess>) {
        y[i] = b.x + b.y + b.z + b.w;
      } else {
        reinterpret_cast<float4*>(y)[i] = b;
      }
    }
  }
};

template <class Pass, RowScope Scope, int V, int Packs, int Bound, int Blocks>
__global__ void __launch_bounds__(Bound)
    row_kernel(const float* x, const float* weight, float* y, float** memory, int n) {
  Body<Pass, Scope, V, Packs, Bound, Blocks>::run(x, weight, y, memory, n);
}

/// Blocks: as many as the name promises; 1,024 threads leave 64 registers to each, which keep_many exceeds.
template <class Fault, int Bound, int Blocks>
constexpr auto kernel = &row_kernel<DevicePass<RmsForward<float, Fault>, List<DeviceRows<const float>>,
                                               List<const float*>, List<DeviceRows<float>>, None, None>,
                                    RowScope::lanes, 4, 1, Bound, Blocks>;

extern const void* const kernels[];
const void* const kernels[] = {
    reinterpret_cast<const void*>(kernel<fault::None, 128, 8>),
    reinterpret_cast<const void*>(kernel<fault::Spill, 1024, 1>),
    reinterpret_cast<const void*>(kernel<fault::LocalArray, 128, 4>),
    reinterpret_cast<const void*>(kernel<fault::NarrowLoads, 128, 8>),
    reinterpret_cast<const void*>(kernel<fault::OneLoadMore, 128, 8>),
    reinterpret_cast<const void*>(kernel<fault::OneStoreLess, 128, 8>),
    reinterpret_cast<const void*>(kernel<fault::GenericAccess, 128, 8>),
    reinterpret_cast<const void*>(kernel<fault::DoubleArithmetic, 128, 8>),
    reinterpret_cast<const void*>(kernel<fault::DoubleConversion, 128, 8>),
    reinterpret_cast<const void*>(kernel<fault::TooManyRegisters, 128, 8>),
};

}  // namespace detail
}  // namespace evenkeel
