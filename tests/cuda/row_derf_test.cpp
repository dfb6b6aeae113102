#include "cuda/row_norm_contract.hpp"

using namespace cuda_test;

TEMPLATE_LIST_TEST_CASE("derf equals its formula at every width", "[cuda]", DataScalars) {
  check_widths<Derf, typename TestType::T, typename TestType::W>();
}

TEST_CASE("derf gives what the CPU gives", "[cuda]") { check_against_cpu<Derf, float, float>(); }

TEST_CASE("derf gives the same bits in every order", "[cuda]") { check_bits<Derf, float, float>(); }

TEST_CASE("derf adds up, isolates rows and refuses what it cannot do", "[cuda]") {
  check_contract<Derf, float, float>();
}
