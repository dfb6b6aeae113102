// gated_rms_norm against its reference, for the files that its tests are spread over.
#pragma once

#include "evenkeel/norms/gated_rms_norm.hpp"
#include "norms/norm_under_test.hpp"
#include "support/row_reference.hpp"

namespace norms_test {

inline constexpr ek::GateOrder gate_orders[] = {ek::GateOrder::norm_then_gate, ek::GateOrder::gate_then_norm};

template <class X, class T>
void check_gated(const Slab& s, X x, const Vector<T>& weight, const ek::GatedRmsNormOptions& options, double epsilon,
                 double least = 0) {
  const bool gate_first = options.order == ek::GateOrder::gate_then_norm;
  INFO(s.outer << " x " << s.length << " x " << s.inner << ", gate first " << gate_first);
  using S = std::remove_cvref_t<decltype(*x.data())>;
  const Data data = make_data<S>(s, s.size());
  const Values gate_values = support::normal<S>(s.size(), 99, -0.5, 3), w = values_of(weight);
  X dy = x, gate = x, y = x, dx = x, dgate = x;
  fill(x, data.x);
  fill(dy, data.dy);
  fill(gate, gate_values);
  for (X* out : {&y, &dx, &dgate}) fill(*out, Values(s.size(), NAN));
  Vector<T> dweight = Vector<T>::Constant(weight.size(), nan_of<T>());
  ek::GatedRmsNormSaved<ek::accumulator_t<S>> saved;
  ek::gated_rms_norm(ek::serial, x, gate, weight, y, saved, options);
  ek::gated_rms_norm_backward(ek::serial, dy, x, gate, weight, saved, dx, dgate, dweight, ek::GradientMode::overwrite);
  const reference::Options o{options.eps, options.unit_offset, {}};
  auto forward = reference::gated_rms_norm(s, data.x, gate_values, w, gate_first, o);
  auto backward = reference::gated_rms_norm_backward(s, data.dy, data.x, gate_values, w, gate_first, o);
  for (Values* m : {&forward.y_magnitude, &backward.dx_magnitude, &backward.dgate_magnitude})
    for (double& size : *m) size += least;
  const std::size_t summed = least > 0 ? 0 : s.length;
  CHECK(worst_error(values_of(y), forward.y, forward.y_magnitude, summed, epsilon) <= 1);
  CHECK(worst_error(values_of(dx), backward.dx, backward.dx_magnitude, summed, epsilon) <= 1);
  CHECK(worst_error(values_of(dgate), backward.dgate, backward.dgate_magnitude, summed, epsilon) <= 1);
  CHECK(worst_error(values_of(dweight), backward.dweight, backward.dweight_magnitude, s.size(), epsilon_of<T>()) <= 1);
}

template <class T>
Vector<T> weight_of(std::size_t length) {
  return vector_of<T>(support::normal<T>(length, length, 0.5));
}

}  // namespace norms_test
