#include "cuda/row_norm_contract.hpp"

using namespace cuda_test;

TEMPLATE_LIST_TEST_CASE("l2_norm equals its formula at every width", "[cuda]", DataScalars) {
  check_widths<L2Norm, typename TestType::T, typename TestType::W>();
}

TEST_CASE("l2_norm gives what the CPU gives", "[cuda]") { check_against_cpu<L2Norm, float, float>(); }

TEST_CASE("l2_norm gives the same bits in every order", "[cuda]") { check_bits<L2Norm, float, float>(); }

TEST_CASE("l2_norm adds up, isolates rows and refuses what it cannot do", "[cuda]") {
  check_contract<L2Norm, float, float>();
}
