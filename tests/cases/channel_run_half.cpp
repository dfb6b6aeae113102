#include "cases/channel_run_impl.hpp"

CASES_TEST_RUN(Eigen::half, Eigen::half);
