#include "cases/channel_run_impl.hpp"

CASES_TEST_RUN(float, float);
