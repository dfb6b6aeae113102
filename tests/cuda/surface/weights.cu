// Norms of weights, which compute in double.

#include "surface/tensors.hpp"

void use_weight_norm(surface::Tensors<float>& t, ek::WeightNorm<float, ek::CudaStorage>& norm) {
  norm.reserve(t.device);
  norm.materialize(t.device, t.y);
  norm.backward(t.device, t.dy);
}

void use_weight_norm_split(surface::Tensors<Eigen::bfloat16>& t) {
  ek::weight_norm_split(t.device, t.x, t.y, t.weight);
}

void use_standardization(surface::Tensors<Eigen::bfloat16>& t,
                         ek::ScaledWeightStandardization<float, ek::CudaStorage>& standardization) {
  standardization.reserve(t.device);
  standardization.materialize(t.device, t.y);
  standardization.backward(t.device, t.dy);
}

void use_spectral_norm(surface::Tensors<float>& t, ek::SpectralNorm<float, ek::CudaStorage>& norm) {
  norm.reserve(t.device);
  norm.materialize(t.device, t.y);
  norm.backward(t.device, t.dy);
}
