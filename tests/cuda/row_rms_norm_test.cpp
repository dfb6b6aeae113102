#include "cuda/row_norm_contract.hpp"

using namespace cuda_test;

TEMPLATE_LIST_TEST_CASE("rms_norm equals its formula at every width", "[cuda]", DataScalars) {
  check_widths<RmsNorm, typename TestType::T, typename TestType::W>(2);
}

TEST_CASE("rms_norm of rows that lie across", "[cuda]") {
  check_across<RmsNorm, float, float>({1, 7, 33, 96, 1000, 8200}, 70);
  check_across<RmsNorm, Eigen::bfloat16, Eigen::bfloat16>({7, 8200}, 70);
}

TEST_CASE("rms_norm gives what the CPU gives", "[cuda]") { check_against_cpu<RmsNorm, float, float>(); }

TEST_CASE("rms_norm gives the same bits in every order", "[cuda]") { check_bits<RmsNorm, float, float>(); }

TEST_CASE("rms_norm adds up, isolates rows and refuses what it cannot do", "[cuda]") {
  check_contract<RmsNorm, float, float>();
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("rms_norm rounds xhat first where that is asked for", "[cuda]") {
  check_rounding<RmsNorm, Eigen::half, float>();
  check_rounding<RmsNorm, Eigen::bfloat16, Eigen::bfloat16>();
}

TEST_CASE("rms_norm in bfloat16 gives the same bits in every order", "[cuda]") {
  check_bits<RmsNorm, Eigen::bfloat16, Eigen::bfloat16>();
}
#endif
