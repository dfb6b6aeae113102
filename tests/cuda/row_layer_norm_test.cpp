#include "cuda/row_norm_contract.hpp"

using namespace cuda_test;

TEMPLATE_LIST_TEST_CASE("layer_norm equals its formula at every width", "[cuda]", DataScalars) {
  check_widths<LayerNorm, typename TestType::T, typename TestType::W>(2);
}

TEST_CASE("layer_norm gives what the CPU gives", "[cuda]") { check_against_cpu<LayerNorm, float, float>(); }

TEST_CASE("layer_norm gives the same bits in every order", "[cuda]") {
  check_bits<LayerNorm, float, float>(kernel_widths);
}

TEST_CASE("layer_norm adds up, isolates rows and refuses what it cannot do", "[cuda]") {
  check_contract<LayerNorm, float, float>();
}

TEST_CASE("layer_norm of a constant row is the bias, of a hard row its formula", "[cuda]") {
  if (build != Build::plain) return;  // numbers, not memory
  for (const Index length : kernel_widths) {
    const Placement place = packed(3, length);
    RowData data = row_data<float, float>(place);
    INFO((describe<LayerNorm, float, float>(place, data)));
    for (const double value : {0.0, 0.1f + 0.0, -3.7f + 0.0, 1e4f + 0.3f + 0.0}) {
      data.x.assign(data.x.size(), value);
      RowTensors<float, float> t(data, place);
      const Values y = run<LayerNorm>(ek::CudaStream(nullptr, small), t, {})[0].values;
      for (std::size_t i = 0; i < y.size(); ++i)
        if (y[i] != data.bias[i % data.bias.size()]) FAIL(value << " gives " << y[i] << " for " << data.bias[i]);
    }
    data = row_data<float, float>(place, 1, 1e4, 1e-2);
    RowTensors<float, float> t(data, place);
    const Results got = run<LayerNorm>(ek::CudaStream(nullptr, small), t, {}), expected = LayerNorm::expected(data, {});
    for (std::size_t k = 0; k < got.size(); ++k) {
      INFO(expected[k].name);
      CHECK((worst_error<float, float>(got[k], expected[k])) <= 1);
    }
  }
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("layer_norm rounds xhat first where that is asked for", "[cuda]") {
  check_rounding<LayerNorm, Eigen::half, float>();
  check_rounding<LayerNorm, Eigen::bfloat16, Eigen::bfloat16>();
}

TEST_CASE("layer_norm in bfloat16 gives the same bits in every order", "[cuda]") {
  check_bits<LayerNorm, Eigen::bfloat16, Eigen::bfloat16>();
}
#endif
