#include "cuda/row_norm_contract.hpp"

using namespace cuda_test;

TEMPLATE_LIST_TEST_CASE("partial_rms_norm equals its formula at every width", "[cuda]", DataScalars) {
  check_widths<PartialRmsNorm, typename TestType::T, typename TestType::W>();
}

TEST_CASE("partial_rms_norm gives what the CPU gives", "[cuda]") { check_against_cpu<PartialRmsNorm, float, float>(); }

TEST_CASE("partial_rms_norm gives the same bits in every order", "[cuda]") {
  check_bits<PartialRmsNorm, float, float>();
}

TEST_CASE("partial_rms_norm adds up, isolates rows and refuses what it cannot do", "[cuda]") {
  check_contract<PartialRmsNorm, float, float>();
}
