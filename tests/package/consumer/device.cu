#include "evenkeel/cuda_stream.cuh"
#include "evenkeel/detail/row_pass_cuda.cuh"
#include "evenkeel/norms/rms_norm.hpp"
#include "units.hpp"

#include <cstdio>

namespace ek = evenkeel;

int run_on_device() {
  using Rows = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  int count = 0;
  const bool has_device = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  // Facts from elsewhere: without a device the first to fail is the launch.
  const ek::CudaStream device(nullptr, ek::CudaFacts{});
  ek::CudaBuffer<float> buffer;
  if (has_device) buffer.reserve(3 * 40);
  Rows x(buffer.data(), 3, 40);
  try {
    ek::rms_norm(device, x, ek::none, x, ek::none);
    return has_device && cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
  } catch (const ek::CudaError& error) {
    std::fprintf(stderr, "CudaError: %s\n", error.what());
    return has_device ? 1 : 0;
  }
}
