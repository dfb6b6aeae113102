#include "cuda/row_norm_contract.hpp"

using namespace cuda_test;

namespace {
using GateLast = GatedRmsNorm<ek::GateOrder::norm_then_gate>;
using GateFirst = GatedRmsNorm<ek::GateOrder::gate_then_norm>;
}  // namespace

TEMPLATE_LIST_TEST_CASE("gated_rms_norm equals its formula at every width", "[cuda]", WideScalars) {
  check_widths<GateLast, typename TestType::T, typename TestType::W>();
}

TEMPLATE_LIST_TEST_CASE("gated_rms_norm with the gate first equals its formula at every width", "[cuda]", WideScalars) {
  check_widths<GateFirst, typename TestType::T, typename TestType::W>();
}

TEST_CASE("gated_rms_norm gives what the CPU gives", "[cuda]") { check_against_cpu<GateLast, float, float>(); }

TEST_CASE("gated_rms_norm gives the same bits in every order", "[cuda]") { check_bits<GateLast, float, float>(); }

TEST_CASE("gated_rms_norm adds up, isolates rows and refuses what it cannot do", "[cuda]") {
  check_contract<GateLast, float, float>();
}

TEST_CASE("gated_rms_norm with the gate first gives what the CPU gives", "[cuda]") {
  check_against_cpu<GateFirst, float, float>();
}

TEST_CASE("gated_rms_norm with the gate first gives the same bits in every order", "[cuda]") {
  check_bits<GateFirst, float, float>();
}

TEST_CASE("gated_rms_norm with the gate first adds up, isolates rows and refuses what it cannot do", "[cuda]") {
  check_contract<GateFirst, float, float>();
}
