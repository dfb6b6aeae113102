#include "norms/pointwise_checks.hpp"

using namespace norms_test;
using Norm = DerfUnderTest;

TEMPLATE_TEST_CASE("derf equals the reference on awkward shapes", "[norms][derf]", SUPPORT_WIDE_SCALARS) {
  check_pointwise_shapes<Norm, TestType>();
}
TEST_CASE("derf works along any axis of either storage order", "[norms][derf]") { check_pointwise_layouts<Norm>(); }
TEST_CASE("derf's gradients equal central differences", "[norms][derf]") { check_pointwise_gradients<Norm>(); }
TEST_CASE("derf gives the same bits on every device and in place", "[norms][derf][devices]") {
  check_pointwise_bits<Norm>();
}
TEST_CASE("derf of huge elements and of NaN", "[norms][derf]") { check_pointwise_ends<Norm>(); }
TEMPLATE_TEST_CASE("derf of small scalars with float parameters", "[norms][derf]", SUPPORT_SMALL_SCALARS) {
  check_pointwise_small_scalars<Norm, TestType>();
}

TEST_CASE("derf names what does not fit", "[norms][derf][errors]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(4, 12);
  const Vector<float> one = Vector<float>::Ones(1), two = Vector<float>::Ones(2);
  RowMatrix<float> y(4, 12);
  ek::DerfSaved<float> saved;
  CHECK_THROWS_WITH(ek::derf(ek::serial, x, two, one, ek::none, ek::none, y, saved),
                    "derf: alpha has 2 values, expected 1");
  CHECK_THROWS_WITH(ek::derf(ek::serial, x, one, two, ek::none, ek::none, y, saved),
                    "derf: shift has 2 values, expected 1");
  CHECK_THROWS_WITH(
      ek::derf_backward(ek::serial, x, x, one, one, ek::none, saved, y, ek::none, ek::none, ek::none, ek::none),
      support::contains_text("derf_backward: saved is empty"));
}

TEST_CASE("Derf owns alpha, shift, weight and bias", "[norms][derf][layers]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(6, 24), dy = RowMatrix<float>::Random(6, 24);
  ek::Derf<float> layer(24);
  layer.shift.fill(0.125f);
  RowMatrix<float> y(6, 24), dx(6, 24), layer_y(6, 24), layer_dx(6, 24);
  ek::DerfSaved<float> saved;
  const float alpha = 0.5f, shift = 0.125f;
  float dalpha = 0, dshift = 0;
  Vector<float> dweight = Vector<float>::Zero(24), dbias = dweight;
  const Vector<float> weight = Vector<float>::Ones(24);
  ek::derf(ek::serial, x, &alpha, &shift, weight, dbias, y, saved);
  ek::derf_backward(ek::serial, dy, x, &alpha, &shift, weight, saved, dx, &dalpha, &dshift, dweight, dbias);
  layer.forward(ek::serial, x, layer_y);
  layer.backward(ek::serial, dy, x, layer_dx);
  CHECK((layer_y.array() == y.array()).all());
  CHECK((layer_dx.array() == dx.array()).all());
  CHECK(*layer.alpha.gradient() == dalpha);
  CHECK(*layer.shift.gradient() == dshift);
  std::string names;
  layer.for_each_parameter([&](ek::ParameterRef<float> p) { names += std::string(p.name) + " "; });
  CHECK(names == "alpha shift weight bias ");
}
