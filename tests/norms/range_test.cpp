// layer_norm, rms_norm and l2_norm near the ends of the range.
#include "norms/l2_norm_under_test.hpp"
#include "norms/range_checks.hpp"

using namespace norms_test;

TEST_CASE("rows near the ends of the range, rms_norm", "[norms][rms_norm]") { check_ranges<Plain<RmsNormUnderTest>>(); }
TEST_CASE("rows near the ends of the range, layer_norm", "[norms][layer_norm]") {
  check_ranges<Plain<LayerNormUnderTest>>();
}
TEST_CASE("rows near the ends of the range, l2_norm", "[norms][l2_norm]") { check_ranges<Plain<L2NormUnderTest>>(); }

TEST_CASE("the largest and smallest numbers of a type, side by side", "[norms][layer_norm][rms_norm]") {
  const float most = std::numeric_limits<float>::max();
  RowMatrix<float> x(2, 4), y(2, 4);
  x << most, -most, most, -most, most, most, most, most;
  ek::layer_norm(ek::serial, x, ek::none, ek::none, y, ek::none);
  for (int i = 0; i < 4; ++i) {
    CHECK(double(y(0, i)) == Approx(i % 2 ? -1.0 : 1.0));
    CHECK(y(1, i) == 0);
  }
  ek::rms_norm(ek::serial, x, ek::none, y, ek::none);
  for (int i = 0; i < 4; ++i) CHECK(double(y(1, i)) == Approx(1.0));
  // A gradient whose sum leaves the range.
  ek::LayerNormSaved<float> saved;
  x << 1, 2, 3, 4, 4, 3, 2, 1;
  RowMatrix<float> dy = RowMatrix<float>::Constant(2, 4, most / 2), dx(2, 4);
  dy(0, 3) = 0;
  ek::layer_norm(ek::serial, x, ek::none, ek::none, y, saved);
  ek::layer_norm_backward(ek::serial, dy, x, ek::none, saved, dx, ek::none, ek::none);
  CHECK(double(dx(0, 3)) / double(most) == Approx(-0.1341640786).epsilon(1e-5));
  CHECK(std::abs(double(dx(1, 0))) <= 1e-6 * double(most));
}
