// Tapered layers of bfloat16, and what they share with the rest in double, which takes a third of the time.
#include "surface/tensors.hpp"

void use_layer(surface::Tensors<Eigen::bfloat16>& t, ek::TaperLayerNorm<float, ek::CudaStorage>& norm) {
  norm.saved.reserve(t.device, t.x);
  norm.add_forward(t.device, t.x, t.z, t.z, t.y);
  norm.add_backward(t.device, t.dy, t.dz, t.z, t.dx);
  norm.restore(norm.state());
}

using Doubles = surface::Tensors<double, double>;

void use_taper_norm(Doubles& t, ek::TaperRmsNormSaved<double, ek::CudaStorage>& saved) {
  ek::add_taper_rms_norm(t.device, t.x, t.z, t.weight, t.bias, ek::none, t.z, t.y, saved);
  ek::add_taper_rms_norm_backward(t.device, t.dy, t.dz, t.z, t.weight, t.bias, saved, t.dx, t.dweight, t.dbias,
                                  ek::none);
}
void use_gate_gradients(Doubles& t, ek::TaperLayerNormSaved<double, ek::CudaStorage>& saved,
                        ek::TaperGateSaved<ek::CudaStorage>& gradients) {
  ek::taper_gate_gradients(t.device, t.dy, t.x, t.weight, t.bias, saved, gradients);
}
void use_gate_in_memory(Doubles& t, ek::CudaTaper& taper,
                        ek::TaperRmsNorm<double, ek::CudaStorage, ek::CudaTaper>& norm) {
  norm.forward(t.device, t.x, t.y);
  norm.backward(t.device, t.dy, t.x, t.dx);
  taper.advance(t.device);
}
const double* use_anchor(Doubles& t, ek::ScaleAnchor<double, ek::CudaStorage>& anchor) {
  anchor.reserve(t.device, t.x);
  return anchor.add(t.device, t.x, t.dx);
}
void use_fake(Doubles& t, ek::FakeLayerNorm<double, ek::CudaStorage>& norm) {
  norm.reserve(t.device, t.x);
  norm.forward(t.device, t.x, t.y);
  norm.backward(t.device, t.dy, t.x, t.dx);
  norm.freeze();
}
