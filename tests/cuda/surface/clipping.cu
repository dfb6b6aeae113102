// Gradient clipping, which computes in double.

#include "surface/tensors.hpp"

void use_clipping(surface::Tensors<float>& t, const std::vector<ek::ClippedParameter<float>>& units,
                  const std::vector<ek::ParameterRef<float>>& parameters, ek::ClippingSaved<ek::CudaStorage>& saved) {
  ek::adaptive_gradient_clipping(t.device, units, saved);
  ek::clip_global_gradient_norm(t.device, parameters, 1.0, saved);
}
