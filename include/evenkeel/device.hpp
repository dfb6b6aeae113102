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

/// The one sentence for a device that has no code in this unit.
template <class D>
constexpr void require_cpu_device() {
  static_assert(CpuDevice<D> || !StreamDevice<D>,
                "evenkeel: this device has a CUDA stream, and only the CPU functions are declared here");
  static_assert(CpuDevice<D> || StreamDevice<D>,
                "evenkeel: the first argument must be ek::Serial, Eigen::DefaultDevice or Eigen::ThreadPoolDevice");
}

}  // namespace detail
}  // namespace evenkeel
