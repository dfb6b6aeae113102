// The scalars that TEMPLATE_TEST_CASE takes. The sanitizers see one of each kind: what they look at, addresses and
// integers, is written once for all scalars, and tests that name double or half instantiate those too.
#pragma once

#include "support/sanitizers.hpp"

#include <Eigen/Core>

#if defined(__SANITIZE_ADDRESS__)
#define SUPPORT_WIDE float
#define SUPPORT_WIDE_SCALARS float
#define SUPPORT_SMALL_SCALARS Eigen::bfloat16
#else
#define SUPPORT_WIDE double
#define SUPPORT_WIDE_SCALARS float, double
#define SUPPORT_SMALL_SCALARS Eigen::half, Eigen::bfloat16
#endif
