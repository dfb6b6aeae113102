// Apart from layer_norm_test.cpp to keep the time to compile either within bounds.
#include "norms/row_norm_checks.hpp"

using namespace norms_test;
using Norm = LayerNormUnderTest;

TEMPLATE_TEST_CASE("layer_norm equals the reference for every option", "[norms][layer_norm]", SUPPORT_WIDE_SCALARS) {
  check_options<Norm, TestType>();
  check_machine_epsilon<Norm, TestType>();
}
