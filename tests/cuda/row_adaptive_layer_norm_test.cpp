#include "cuda/row_norm_contract.hpp"

using namespace cuda_test;

namespace {
using Norm = AdaptiveNorm<true>;
}

TEMPLATE_LIST_TEST_CASE("adaptive_layer_norm equals its formula at every width", "[cuda]", DataScalars) {
  check_widths<Norm, typename TestType::T, typename TestType::W>();
}

TEST_CASE("adaptive_layer_norm gives what the CPU gives", "[cuda]") { check_against_cpu<Norm, float, float>(); }

TEST_CASE("adaptive_layer_norm gives the same bits in every order", "[cuda]") { check_bits<Norm, float, float>(); }

TEST_CASE("adaptive_layer_norm adds up, isolates rows and refuses what it cannot do", "[cuda]") {
  check_contract<Norm, float, float>();
}
