// Norms with scale and shift for each sample, and norms of half and double data.

#include "surface/tensors.hpp"

template <class T>
void use_adaptive(surface::Tensors<T>& t, ek::AdaptiveLayerNormSaved<float, ek::CudaStorage>& layer,
                  ek::AdaptiveRmsNormSaved<float, ek::CudaStorage>& rms) {
  ek::adaptive_layer_norm(t.device, t.x, t.scale, t.offset, t.y, layer);
  ek::adaptive_layer_norm_backward(t.device, t.dy, t.x, t.scale, layer, t.dx, t.dscale, t.doffset);
  ek::adaptive_rms_norm(t.device, t.x, t.scale, t.offset, t.y, rms);
  ek::adaptive_rms_norm_backward(t.device, t.dy, t.x, t.scale, rms, t.dx, t.dscale, t.doffset);
}

template void use_adaptive(surface::Tensors<float>&, ek::AdaptiveLayerNormSaved<float, ek::CudaStorage>&,
                           ek::AdaptiveRmsNormSaved<float, ek::CudaStorage>&);
template void use_adaptive(surface::Tensors<Eigen::bfloat16>&, ek::AdaptiveLayerNormSaved<float, ek::CudaStorage>&,
                           ek::AdaptiveRmsNormSaved<float, ek::CudaStorage>&);

void use_half(surface::Tensors<Eigen::half, Eigen::half>& t, ek::RmsNormSaved<float, ek::CudaStorage>& saved) {
  ek::rms_norm(t.device, t.x, t.weight, t.y, saved);
}
void use_double(surface::Tensors<double, double>& t, ek::RmsNormSaved<double, ek::CudaStorage>& saved) {
  ek::rms_norm(t.device, t.x, t.weight, t.y, saved);
  ek::rms_norm_backward(t.device, t.dy, t.x, t.weight, saved, t.dx, t.dweight);
}
