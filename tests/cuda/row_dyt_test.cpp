#include "cuda/row_norm_contract.hpp"

using namespace cuda_test;

TEMPLATE_LIST_TEST_CASE("dyt equals its formula at every width", "[cuda]", DataScalars) {
  check_widths<Dyt, typename TestType::T, typename TestType::W>();
}

TEST_CASE("dyt gives what the CPU gives", "[cuda]") { check_against_cpu<Dyt, float, float>(); }

TEST_CASE("dyt gives the same bits in every order", "[cuda]") { check_bits<Dyt, float, float>(kernel_widths); }

TEST_CASE("dyt adds up, isolates rows and refuses what it cannot do", "[cuda]") { check_contract<Dyt, float, float>(); }

// Sums over so many rows that partial sums are put aside on the way.
TEST_CASE("dyt adds up many rows", "[cuda]") {
  if (build != Build::plain) return;
  use_order(Order::forward);
  check_case<Dyt, float, float>(packed(34000, 1));
  check_case<Dyt, float, float>(column_major(8300, 2));
}
