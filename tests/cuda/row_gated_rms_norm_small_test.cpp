#include "cuda/row_norm_checks.hpp"

#if !defined(__SANITIZE_THREAD__)

using namespace cuda_test;

namespace {
using GateLast = GatedRmsNorm<ek::GateOrder::norm_then_gate>;
using GateFirst = GatedRmsNorm<ek::GateOrder::gate_then_norm>;
}  // namespace

TEMPLATE_LIST_TEST_CASE("gated_rms_norm equals its formula at every width", "[cuda]", SmallScalars) {
  check_widths<GateLast, typename TestType::T, typename TestType::W>();
}

TEMPLATE_LIST_TEST_CASE("gated_rms_norm with the gate first equals its formula at every width", "[cuda]",
                        SmallScalars) {
  check_widths<GateFirst, typename TestType::T, typename TestType::W>();
}

#endif
