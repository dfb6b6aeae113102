#include "cases/row_run_impl.hpp"
#include "norms/l2_norm_under_test.hpp"

CASES_TEST_RUN(double, norms_test::L2NormUnderTest);
CASES_TEST_RUN(float, norms_test::L2NormUnderTest);
CASES_TEST_RUN(Eigen::half, norms_test::L2NormUnderTest);
CASES_TEST_RUN(Eigen::bfloat16, norms_test::L2NormUnderTest);
