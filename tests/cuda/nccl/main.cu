// SyncBatchNorm over NCCL: compiled and linked everywhere, and run by one rank where there is a device.
#include "evenkeel/cuda.hpp"
#include "evenkeel/distributed/nccl_communicator.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

namespace ek = evenkeel;

namespace {

using Data = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
using Vector = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, 1>>;
static_assert(ek::Communicator<ek::NcclCommunicator>);

void check(cudaError_t status, const char* call) { ek::detail::check_cuda(status, "nccl", call); }

// y has mean 0 and variance 1 in each channel, and dx adds up to 0.
int run_one_rank() {
  constexpr int samples = 512, channels = 24, size = samples * channels;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  ncclUniqueId id;
  ncclComm_t nccl = nullptr;
  if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&nccl, 1, id, 0) != ncclSuccess) return 1;
  const ek::CudaStream device(stream);
  ek::NcclCommunicator communicator(nccl, stream);
  ek::BatchNormSaved<float, ek::CudaStorage> saved;
  std::vector<float> host(size), y(size), dx(size);
  for (int i = 0; i < size; ++i) host[i] = 3.0f + static_cast<float>((i * 7919) % 1013) / 500.0f;
  ek::CudaBuffer<float> memory;
  memory.reserve(3 * size + channels);  // zero at first: the gradient of the bias
  Data x_map(memory.data(), samples, channels), y_map(memory.data() + size, samples, channels),
      dx_map(memory.data() + 2 * size, samples, channels);
  Vector dbias(memory.data() + 3 * size, channels);
  check(cudaMemcpy(memory.data(), host.data(), size * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
  saved.reserve(device, x_map, {}, communicator);
  ek::batch_norm(device, x_map, ek::none, ek::none, y_map, saved, {}, communicator);
  ek::Pending backward = ek::start_batch_norm_backward(device, x_map, x_map, ek::none, ek::none, saved, dx_map,
                                                       ek::none, dbias, ek::GradientMode::accumulate, communicator);
  backward.finish();
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check(cudaMemcpy(y.data(), y_map.data(), size * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
  check(cudaMemcpy(dx.data(), dx_map.data(), size * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
  double worst = 0;
  for (int c = 0; c < channels; ++c) {
    double mean = 0, square = 0, slope = 0;
    for (int i = c; i < size; i += channels) mean += y[i], square += double(y[i]) * y[i], slope += dx[i];
    worst = std::fmax(worst, std::fabs(mean / samples));
    worst = std::fmax(worst, std::fabs(square / samples - 1));
    worst = std::fmax(worst, std::fabs(slope / samples));
  }
  ncclCommDestroy(nccl);
  std::printf("one rank on a device: off by %.1e\n", worst);
  return worst < 1e-4 ? 0 : 1;
}

}  // namespace

int main() {
  int version = 0, devices = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return 1;
  const bool has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  std::printf("NCCL %d, %s\n", version, has_device ? "with a device" : "without a device: linked, not run");
  return has_device ? run_one_rank() : 0;
}
