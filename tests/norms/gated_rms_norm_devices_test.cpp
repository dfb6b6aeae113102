// Apart from gated_rms_norm_test.cpp to keep the time to compile either within bounds.
#include "norms/gated_rms_norm_checks.hpp"
#include "support/devices.hpp"

using namespace norms_test;

TEST_CASE("gated_rms_norm gives the same bits on every device and in place", "[norms][gated_rms_norm][devices]") {
  const std::size_t rows = 257;
  for (const std::size_t features : Counts{5, 64, 77}) {
    const Data data = make_data<float>({rows, features, 1}, features);
    const auto x = matrix_of<RowMatrix<float>>(rows, features, data.x),
               dy = matrix_of<RowMatrix<float>>(rows, features, data.dy);
    const RowMatrix<float> gate = 2 * dy - x;
    const auto weight = vector_of<float>(data.weight);
    ek::GatedRmsNorm<float> layer(ek::Index(features), {.order = gate_orders[features % 2]});
    for (std::size_t i = 0; i < features; ++i) layer.weight.value()[i] = weight(ek::Index(i));
    RowMatrix<float> y(rows, features), dx(rows, features), dgate(rows, features);
    layer.forward(ek::serial, x, gate, y);
    layer.backward(ek::serial, dy, x, gate, dx, dgate);
    layer.backward(ek::serial, dy, x, gate, dx, dgate);  // accumulates
    support::for_each_device([&](const auto& device) {
      ek::GatedRmsNormSaved<float> saved;
      const auto options = layer.options();
      RowMatrix<float> a = x, b = gate, got(rows, features);
      Vector<float> dweight = Vector<float>::Zero(ek::Index(features));
      ek::gated_rms_norm(device, a, b, weight, a, saved, options);
      CHECK((a.array() == y.array()).all());
      CHECK_THROWS_AS(ek::gated_rms_norm_backward(device, dy, a, b, weight, saved, got, dx, dweight), ek::ShapeError);
      a = x;
      ek::gated_rms_norm(device, a, b, weight, b, saved, options);
      CHECK((b.array() == y.array()).all());
      CHECK_THROWS_WITH(ek::gated_rms_norm_backward(device, dy, a, b, weight, saved, got, dx, dweight),
                        support::contains_text("has overwritten gate"));
      b = gate;
      ek::gated_rms_norm(device, a, b, weight, got, saved, options);
      CHECK((got.array() == y.array()).all());
      got = dy;
      for (int step = 0; step < 2; ++step) {
        got = dy;
        b = gate;
        ek::gated_rms_norm_backward(device, got, x, b, weight, saved, got, b, dweight);
      }
      CHECK((got.array() == dx.array()).all());
      CHECK((b.array() == dgate.array()).all());
      CHECK((Eigen::Map<Vector<float>>(layer.weight.gradient(), ek::Index(features)) == dweight).all());
    });
  }
}
