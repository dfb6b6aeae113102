/// Devices that evenkeel's functions take as their first argument. The device's type chooses the code, at compile time.
///
///   ek::Serial, Eigen::DefaultDevice   the calling thread
///   Eigen::ThreadPoolDevice            the pool and the calling thread; results do not depend on the number of threads
///
/// Eigen's devices are recognised by their members, so this header costs Eigen/Core only. Who passes one includes
/// unsupported/Eigen/CXX11/Tensor (or evenkeel/tensor.hpp) anyway.
#pragma once

#include "evenkeel/none.hpp"

#include <Eigen/Core>

#include <concepts>
#include <type_traits>

namespace Eigen {
struct DefaultDevice;
}

namespace evenkeel {

using Index = Eigen::Index;
static_assert(sizeof(Index) == 8, "evenkeel: indices must have 64 bits; do not narrow EIGEN_DEFAULT_DENSE_INDEX_TYPE");

/// The calling thread.
struct Serial {};
inline constexpr Serial serial{};

/// A device that runs on the calling thread alone.
template <class D>
concept SerialDevice = std::same_as<D, Serial> || std::same_as<D, Eigen::DefaultDevice>;

/// A device with a thread pool: Eigen::ThreadPoolDevice, or anything with its members.
template <class D>
concept PoolDevice = requires(const D& device) {
  { device.numThreads() } -> std::convertible_to<int>;
  device.getPool()->Schedule([] {});
};

template <class D>
concept CpuDevice = SerialDevice<D> || PoolDevice<D>;

namespace detail {

template <class D>
concept StreamDevice = requires(const D& device) {
  device.stream();
};

/// Whether this unit has the CUDA drivers: evenkeel/cuda.hpp makes it true for devices with a stream.
template <class D>
inline constexpr bool has_cuda_driver = false;

/// With Eigen's CUDA mode its CPU code is scalar, and differs from the same templates in other units.
#if defined(__CUDACC__) && !defined(EIGEN_NO_CUDA)
inline constexpr bool has_cpu_functions = false;
#else
inline constexpr bool has_cpu_functions = true;
#endif

/// The one sentence for a device that has no code in this unit.
template <class D>
constexpr void require_device() {
  static_assert(CpuDevice<D> || StreamDevice<D>,
                "evenkeel: the first argument must be ek::Serial, Eigen::DefaultDevice, Eigen::ThreadPoolDevice, or a "
                "device with a CUDA stream");
  static_assert(CpuDevice<D> || !StreamDevice<D> || has_cuda_driver<D>,
                "evenkeel: this device has a CUDA stream: compile this file with nvcc and include evenkeel/cuda.hpp");
  static_assert(!CpuDevice<D> || has_cpu_functions,
                "evenkeel: define EIGEN_NO_CUDA where nvcc compiles CPU functions, as the target evenkeel::cuda does");
}
/// The same for functions that run on the CPU alone.
template <class D>
constexpr void require_cpu_device() {
  require_device<D>();
  static_assert(CpuDevice<D> || !StreamDevice<D>, "evenkeel: this function does not run on CUDA devices yet");
}

/// Whether the device's driver takes OffsetParameter.
template <class D>
inline constexpr bool offsets_at_run_time = false;

/// The type by which a device's code knows the scalar T.
template <class D, class T>
struct DriverScalar {
  using Type = T;
};
template <class D, class T>
using driver_scalar_t = typename DriverScalar<D, T>::Type;

}  // namespace detail
}  // namespace evenkeel
