// BatchNorm on a device, of the scalars that channel_norms_test.cpp leaves out.
#include "cuda/channel_checks.hpp"

using namespace cuda_test;

TEMPLATE_TEST_CASE("channel norms of double and half on a device equal the reference", "[cuda][batch_norm]",
                   (Types<double, double>), (Types<Eigen::half, Eigen::half>)) {
  check_shapes<typename TestType::Data, typename TestType::Parameter>();
}
