/// Version, and the few macros that the rest of evenkeel is written with.
#pragma once

#define EVENKEEL_VERSION_MAJOR 0
#define EVENKEEL_VERSION_MINOR 1
#define EVENKEEL_VERSION_PATCH 0

// EVENKEEL_HD marks what host and device share. It is always inlined: packs live in registers only while nothing is a
// call. EVENKEEL_MATH stands before `template`: one text is instantiated with device scalars and with host packs, and
// nvcc would otherwise warn that a host-device function calls Eigen's host functions at each host instantiation.
// Under a sanitizer nothing is forced inline: every copy would carry its checks, and a unit takes minutes to compile.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EVENKEEL_ALWAYS_INLINE
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define EVENKEEL_ALWAYS_INLINE
#endif
#endif
#if !defined(EVENKEEL_ALWAYS_INLINE)
#define EVENKEEL_ALWAYS_INLINE __attribute__((always_inline))
#elif !defined(EVENKEEL_RUN_TIME_ISA)
#define EVENKEEL_RUN_TIME_ISA 0  // its kernels pass packs to what is inlined into them, and to nothing else
#endif

#if defined(__CUDACC__)
#define EVENKEEL_HD __host__ __device__ __forceinline__
#define EVENKEEL_MATH _Pragma("nv_exec_check_disable")
#else
#define EVENKEEL_HD inline EVENKEEL_ALWAYS_INLINE
#define EVENKEEL_MATH
#endif

// The same for host functions, for lambdas (after their parameters), and the opposite for what a hot loop rarely calls.
#define EVENKEEL_HOST inline EVENKEEL_ALWAYS_INLINE
#define EVENKEEL_INLINE_LAMBDA EVENKEEL_ALWAYS_INLINE
#define EVENKEEL_NOINLINE __attribute__((noinline))
#define EVENKEEL_COLD __attribute__((noinline, cold))

// A Pack's vector at any address. clang 14 drops the alignment of a typedef that depends on a template's parameter.
#if defined(__clang__)
#define EVENKEEL_IN_MEMORY                                   \
  struct __attribute__((packed, may_alias)) InMemory {       \
    Vector vector;                                           \
    EVENKEEL_PACK operator Vector() const { return vector; } \
    EVENKEEL_PACK InMemory& operator=(const Vector& v) {     \
      vector = v;                                            \
      return *this;                                          \
    }                                                        \
  }
#else
#define EVENKEEL_IN_MEMORY \
  typedef A InMemory __attribute__((vector_size(size * sizeof(A)), aligned(alignof(A)), may_alias))
#endif

/// Traffic in bytes (read and written) from which a call is spread over a thread pool. Below it, waking threads costs
/// more than they save: see bench/NOTES.md.
#ifndef EVENKEEL_PARALLEL_BYTES
#define EVENKEEL_PARALLEL_BYTES (1 << 23)
#endif

/// Whether a unit that is compiled for any x86-64 processor has kernels for AVX2 and for AVX-512 too, of which the best
/// that the processor runs are chosen when the program does. 0 leaves them out, and with them two thirds of the code.
#ifndef EVENKEEL_RUN_TIME_ISA
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__AVX__) && !defined(__CUDACC__)
#define EVENKEEL_RUN_TIME_ISA 1
#else
#define EVENKEEL_RUN_TIME_ISA 0
#endif
#endif

/// Bytes of an output from which on the CPU writes it past its caches, where rows are aligned: for a forward, and for a
/// backward, whose larger inputs leave the caches earlier. Constants, since what a virtual machine reports as its
/// caches is not what it has. See bench/NOTES.md.
#ifndef EVENKEEL_STREAM_BYTES
#define EVENKEEL_STREAM_BYTES (8 << 20)
#endif
#ifndef EVENKEEL_STREAM_BACKWARD_BYTES
#define EVENKEEL_STREAM_BACKWARD_BYTES (1 << 20)
#endif

// Code that depends on the instruction set stands in an inline namespace of that name, so that two units built with
// different flags do not share a function that only one of their machines can run. nvcc's host code has packs of its
// own.
#if defined(__CUDACC__)
#define EVENKEEL_ISA_NAME(isa) isa##_nvcc
#else
#define EVENKEEL_ISA_NAME(isa) isa
#endif
#if defined(__AVX512F__)
#define EVENKEEL_ISA EVENKEEL_ISA_NAME(avx512)
#elif defined(__AVX2__) && defined(__FMA__)
#define EVENKEEL_ISA EVENKEEL_ISA_NAME(avx2_fma)
#elif defined(__AVX2__)
#define EVENKEEL_ISA EVENKEEL_ISA_NAME(avx2)
#elif defined(__AVX__) && defined(__FMA__)
#define EVENKEEL_ISA EVENKEEL_ISA_NAME(avx_fma)
#elif defined(__AVX__)
#define EVENKEEL_ISA EVENKEEL_ISA_NAME(avx)
#elif defined(__SSE4_1__)
#define EVENKEEL_ISA EVENKEEL_ISA_NAME(sse4)
#elif defined(__SSE2__) || defined(_M_X64)
#define EVENKEEL_ISA EVENKEEL_ISA_NAME(sse2)
#elif defined(__ARM_NEON)
#define EVENKEEL_ISA EVENKEEL_ISA_NAME(neon)
#else
#define EVENKEEL_ISA EVENKEEL_ISA_NAME(portable)
#endif
