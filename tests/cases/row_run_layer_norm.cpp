#include "cases/row_run_impl.hpp"

CASES_TEST_RUN(double, cases_test::LayerNormUnderTest);
CASES_TEST_RUN(float, cases_test::LayerNormUnderTest);
CASES_TEST_RUN(Eigen::half, cases_test::LayerNormUnderTest);
CASES_TEST_RUN(Eigen::bfloat16, cases_test::LayerNormUnderTest);
