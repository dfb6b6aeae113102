#include "norms/gated_rms_norm_checks.hpp"

using namespace norms_test;

TEMPLATE_TEST_CASE("gated_rms_norm of small scalars with float weights", "[norms][gated_rms_norm]",
                   SUPPORT_SMALL_SCALARS) {
  const bool half = std::is_same_v<TestType, Eigen::half>;
  for (const auto order : gate_orders)
    check_gated({5, 33, 1}, RowMatrix<TestType>(5, 33), weight_of<float>(33), {.order = order},
                (half ? 0x1p-10 : 0x1p-7) / 12, half ? 0x1p-14 : 0x1p-126);
}
