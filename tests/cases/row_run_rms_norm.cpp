#include "cases/row_run_impl.hpp"

CASES_TEST_RUN(double, cases_test::RmsNormUnderTest);
CASES_TEST_RUN(float, cases_test::RmsNormUnderTest);
CASES_TEST_RUN(Eigen::half, cases_test::RmsNormUnderTest);
CASES_TEST_RUN(Eigen::bfloat16, cases_test::RmsNormUnderTest);
