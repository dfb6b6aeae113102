/// evenkeel on CUDA devices: the functions of evenkeel.hpp with a CudaStream, or any device that has a stream(), as their
/// first argument. For units that nvcc compiles.
///
/// Tensors are Eigen::TensorMap or Eigen::Map of device memory; Eigen::half and Eigen::bfloat16 data are __half and
/// __nv_bfloat16 there. Define EIGEN_NO_CUDA, as the CMake target evenkeel::cuda does: with Eigen's own CUDA mode its
/// CPU code is scalar in such units and differs from the same templates in .cpp files.
#pragma once

#include "evenkeel/cuda_stream.cuh"
#include "evenkeel/detail/channel_pass_cuda.cuh"
#include "evenkeel/detail/channel_ranks_cuda.cuh"
#include "evenkeel/detail/output_backward_cuda.cuh"
#include "evenkeel/detail/row_means_cuda.cuh"
#include "evenkeel/detail/row_pass_cuda.cuh"
#include "evenkeel/detail/taper_gate_cuda.cuh"
#include "evenkeel/detail/weight_pass_cuda.cuh"
#include "evenkeel/evenkeel.hpp"
#include "evenkeel/init/cuda_random.cuh"
#include "evenkeel/taper/cuda_taper.cuh"
