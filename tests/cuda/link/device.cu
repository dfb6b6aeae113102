#include "evenkeel/cuda.hpp"
#include "units.hpp"

namespace ek = evenkeel;

namespace {
using Rows = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
}

bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

std::vector<float> normalize_on_device(const std::vector<float>& x, int rows, int features) {
  // Facts from elsewhere: without a device the first to fail is the launch.
  const ek::CudaStream device(nullptr, ek::CudaFacts{});
  ek::CudaBuffer<float> buffer;
  if (has_device()) buffer.reserve(rows * features);
  Rows on_device(buffer.data(), rows, features);
  const std::size_t bytes = x.size() * sizeof(float);
  if (has_device()) cudaMemcpy(buffer.data(), x.data(), bytes, cudaMemcpyHostToDevice);
  ek::rms_norm(device, on_device, ek::none, on_device, ek::none);
  std::vector<float> y(x.size());
  ek::detail::check_cuda(cudaMemcpy(y.data(), buffer.data(), bytes, cudaMemcpyDeviceToHost), "link", "cudaMemcpy");
  return y;
}

// Compiled for its kernels: masks are bytes.
void use_masked(const ek::CudaStream& device, const Rows& x,
                const Eigen::Map<Eigen::Array<bool, Eigen::Dynamic, 1>>& mask, const Eigen::Map<Eigen::ArrayXf>& weight,
                Rows& y, ek::MaskedLayerNormSaved<float, ek::CudaStorage>& saved) {
  ek::masked_layer_norm(device, x, mask, weight, ek::none, y, saved);
  ek::masked_layer_norm_backward(device, y, x, mask, weight, saved, y, ek::none, ek::none);
}

// The README's lines, compiled for their kernels.
void use_layer(cudaStream_t stream, int width, const Rows& x, Rows& y, const Rows& dy, Rows& dx, Rows& weight) {
  // [cuda]
  ek::CudaStream device(stream);                      // or any device with a stream(), such as Eigen::GpuDevice
  ek::LayerNorm<float, ek::CudaStorage> norm(width);  // its parameters lie on the device
  norm.saved.reserve(device, x);                      // x, y, dy, dx: Eigen::Map or TensorMap of device memory
  norm.forward(device, x, y);
  norm.backward(device, dy, x, dx);
  const ek::RandomStream numbers(42, "layer.0.weight");
  ek::kaiming_normal(weight, ek::fans_of_linear(width, width), ek::CudaRandom(device, numbers));
  // [/cuda]
}
