/// The CPU's loops, once for the instruction set that this unit is compiled for. A unit that is compiled for any x86-64
/// processor has them twice more, for AVX2 and for AVX-512, and `with_kernels` chooses when the program runs.
///
/// The files of kernels/ are read once for each set, under names and limits of its own, and only from here. Whatever a
/// kernel calls with packs is of its set or always inlined: a vector of 64 bytes is passed otherwise by functions of
/// another one. That is also why they have `spread` in place of std::apply.
#pragma once

#include "evenkeel/detail/careful_math.hpp"
#include "evenkeel/detail/channel_math.hpp"
#include "evenkeel/detail/row_math.hpp"
#include "evenkeel/detail/vocabulary.hpp"
#include "evenkeel/device.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <utility>

#if defined(__x86_64__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace evenkeel::detail {

/// A set of kernels that is chosen when the program runs, the least first.
enum class RunTimeIsa { none, avx2, avx512 };

#if EVENKEEL_RUN_TIME_ISA
inline RunTimeIsa supported_isa() {
  __builtin_cpu_init();
  // F16C came with AVX before AVX2 did; clang 14 does not know its name here.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return RunTimeIsa::none;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return RunTimeIsa::avx2;
  return RunTimeIsa::avx512;
}
/// The set in use. Before it is initialized, `none`: always safe.
inline RunTimeIsa run_time_isa = supported_isa();
#endif

}  // namespace evenkeel::detail

// What this unit is compiled for. nvcc takes no vector types in what host and device share.
#define EVENKEEL_KERNELS EVENKEEL_ISA
#define EVENKEEL_PACK EVENKEEL_HOST
#define EVENKEEL_FLATTEN
#if defined(__AVX512F__)
#define EVENKEEL_KERNEL_BYTES 64
#elif defined(__AVX__)
#define EVENKEEL_KERNEL_BYTES 32
#else
#define EVENKEEL_KERNEL_BYTES 16
#endif
#if defined(__AVX__) && !defined(__CUDACC__)
#define EVENKEEL_KERNEL_AVX 1
#endif
#if defined(__AVX2__) && !defined(__CUDACC__)
#define EVENKEEL_KERNEL_AVX2 1
#endif
#if defined(__AVX__) && defined(__FMA__) && !defined(__CUDACC__)
#define EVENKEEL_KERNEL_FMA 1
#endif
#if defined(__AVX512F__) && !defined(__CUDACC__)
#define EVENKEEL_KERNEL_AVX512 1
#endif
#if defined(__F16C__) && !defined(__CUDACC__)
#define EVENKEEL_KERNEL_F16C 1
#endif
#if defined(__AVX512BF16__) && defined(__AVX512DQ__) && !defined(__CUDACC__)
#define EVENKEEL_KERNEL_BF16 1
#endif
#include "evenkeel/detail/kernels/set.ipp"
#undef EVENKEEL_KERNELS
#undef EVENKEEL_KERNEL_BYTES
#undef EVENKEEL_KERNEL_AVX
#undef EVENKEEL_KERNEL_AVX2
#undef EVENKEEL_KERNEL_FMA
#undef EVENKEEL_KERNEL_AVX512
#undef EVENKEEL_KERNEL_F16C
#undef EVENKEEL_KERNEL_BF16
#undef EVENKEEL_PACK
#undef EVENKEEL_FLATTEN

#if EVENKEEL_RUN_TIME_ISA

// Math is of no set, and nothing of a set is inlined into it; it is inlined into the kernels with calls of packs' words
// still in it, which `flatten` then inlines.
#define EVENKEEL_KERNEL_RUN_TIME 1
#define EVENKEEL_PACK inline
#define EVENKEEL_FLATTEN __attribute__((flatten))
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // a pack is passed between functions of one set alone
#endif

#define EVENKEEL_KERNELS run_time_avx2
#define EVENKEEL_KERNEL_BYTES 32
#define EVENKEEL_KERNEL_AVX 1
#define EVENKEEL_KERNEL_AVX2 1
#define EVENKEEL_KERNEL_FMA 1
#define EVENKEEL_KERNEL_F16C 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx,avx2,fma,f16c")
#endif
#include "evenkeel/detail/kernels/set.ipp"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef EVENKEEL_KERNELS
#undef EVENKEEL_KERNEL_BYTES

#define EVENKEEL_KERNELS run_time_avx512
#define EVENKEEL_KERNEL_BYTES 64
#define EVENKEEL_KERNEL_AVX512 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx,avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx,avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#include "evenkeel/detail/kernels/set.ipp"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef EVENKEEL_KERNELS
#undef EVENKEEL_KERNEL_BYTES
#undef EVENKEEL_KERNEL_AVX
#undef EVENKEEL_KERNEL_AVX2
#undef EVENKEEL_KERNEL_FMA
#undef EVENKEEL_KERNEL_AVX512
#undef EVENKEEL_KERNEL_F16C
#undef EVENKEEL_KERNEL_RUN_TIME
#undef EVENKEEL_PACK
#undef EVENKEEL_FLATTEN
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // EVENKEEL_RUN_TIME_ISA

namespace evenkeel::detail {

using namespace kernels::EVENKEEL_ISA;

inline namespace EVENKEEL_ISA {

/// f with the best set of kernels that this processor runs: a struct of class templates (set.ipp).
template <class F>
auto with_kernels(const F& f) {
#if EVENKEEL_RUN_TIME_ISA
  if (run_time_isa == RunTimeIsa::avx512) return f(kernels::run_time_avx512::Kernels{});
  if (run_time_isa == RunTimeIsa::avx2) return f(kernels::run_time_avx2::Kernels{});
#endif
  return f(kernels::EVENKEEL_ISA::Kernels{});
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel::detail
