#include "norms/pointwise_checks.hpp"

using namespace norms_test;
using Norm = DytUnderTest;

TEST_CASE("dyt equals the worked example", "[norms][dyt]") {
  const Vector<double> x = vector_of<double>({-2, -.5, 0, 1, 3}), weight = vector_of<double>({1, 2, -1, .5, 3}),
                       bias = vector_of<double>({0, 1, .5, -1, 2}), dy = vector_of<double>({1, -1, 2, .5, -2});
  const Vector<double> alpha = Vector<double>::Constant(1, 0.5);
  Vector<double> y(5), dx(5), dalpha = Vector<double>::Zero(1), dweight = Vector<double>::Zero(5), dbias = dweight;
  ek::DytSaved<double> saved;
  ek::dyt(ek::serial, x, alpha, weight, bias, y, saved);
  ek::dyt_backward(ek::serial, dy, x, alpha, weight, saved, dx, dalpha, dweight, dbias);
  const auto check = [](const Vector<double>& got, const Values& expected) {
    CHECK((got - vector_of<double>(expected)).abs().maxCoeff() < 1e-15 * 8);
  };
  check(y, {-0.7615941559557649, 0.5101626751925817, 0.5, -0.7689414213699951, 4.7154447609345995});
  check(dx, {0.20998717080701304, -0.940014848806378, -1.0, 0.09830596662074093, -0.5421199167709456});
  check(dalpha, {-2.956041401805866});
  check(dweight, {-0.7615941559557649, 0.24491866240370913, 0, 0.23105857863000487, -1.8102965072897328});
  CHECK((dbias == dy).all());
}

TEMPLATE_TEST_CASE("dyt equals the reference on awkward shapes", "[norms][dyt]", SUPPORT_WIDE_SCALARS) {
  check_pointwise_shapes<Norm, TestType>();
}
TEST_CASE("dyt works along any axis of either storage order", "[norms][dyt]") { check_pointwise_layouts<Norm>(); }
TEST_CASE("dyt's gradients equal central differences", "[norms][dyt]") { check_pointwise_gradients<Norm>(); }
TEST_CASE("dyt gives the same bits on every device and in place", "[norms][dyt][devices]") {
  check_pointwise_bits<Norm>();
}
TEST_CASE("dyt of huge elements and of NaN", "[norms][dyt]") { check_pointwise_ends<Norm>(); }
TEMPLATE_TEST_CASE("dyt of small scalars with float parameters", "[norms][dyt]", SUPPORT_SMALL_SCALARS) {
  check_pointwise_small_scalars<Norm, TestType>();
}

TEST_CASE("dyt is odd", "[norms][dyt]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(9, 33) * 4;
  const float alpha = 0.5f;
  RowMatrix<float> y(9, 33), negative(9, 33);
  ek::dyt(ek::serial, x, &alpha, ek::none, ek::none, y, ek::none);
  ek::dyt(ek::serial, RowMatrix<float>(-x), &alpha, ek::none, ek::none, negative, ek::none);
  CHECK((y.array() == -negative.array()).all());
}

TEST_CASE("dyt names what does not fit", "[norms][dyt][errors]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(4, 12);
  const float alpha = 1;
  const Vector<float> three = Vector<float>::Ones(3);
  RowMatrix<float> y(4, 12), other(4, 11);
  ek::DytSaved<float> saved;
  CHECK_THROWS_WITH(ek::dyt(ek::serial, x, three, ek::none, ek::none, y, saved), "dyt: alpha has 3 values, expected 1");
  CHECK_THROWS_WITH(ek::dyt(ek::serial, x, &alpha, three, ek::none, y, saved),
                    "dyt: weight has 3 values, x has 12 features (x is 4x12, axis 1)");
  CHECK_THROWS_WITH(ek::dyt(ek::serial, x, &alpha, ek::none, ek::none, other, saved),
                    "dyt: y is 4x11, x is 4x12, axis 1");
  CHECK_THROWS_WITH(ek::dyt_backward(ek::serial, x, x, &alpha, ek::none, saved, y, ek::none, ek::none, ek::none),
                    "dyt_backward: saved is empty, expected the one that the forward filled");
  ek::dyt(ek::serial, x, &alpha, ek::none, ek::none, y, saved);
  const RowMatrix<float> before = y;
  Vector<float> dalpha = three;
  CHECK_THROWS_WITH(ek::dyt_backward(ek::serial, x, x, &alpha, ek::none, saved, y, dalpha, ek::none, ek::none),
                    "dyt_backward: dalpha has 3 values, expected 1");
  CHECK((y.array() == before.array()).all());
}

TEST_CASE("Dyt owns alpha, weight and bias", "[norms][dyt][layers]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(6, 24), dy = RowMatrix<float>::Random(6, 24);
  ek::Dyt<float> layer(24);
  RowMatrix<float> y(6, 24), dx(6, 24), layer_y(6, 24), layer_dx(6, 24);
  ek::DytSaved<float> saved;
  const float alpha = 0.5f;
  float dalpha = 0;
  Vector<float> dweight = Vector<float>::Zero(24), dbias = dweight;
  const Vector<float> weight = Vector<float>::Ones(24);
  ek::dyt(ek::serial, x, &alpha, weight, dbias, y, saved);
  ek::dyt_backward(ek::serial, dy, x, &alpha, weight, saved, dx, &dalpha, dweight, dbias);
  layer.forward(ek::serial, x, layer_y);
  layer.backward(ek::serial, dy, x, layer_dx);
  CHECK((layer_y.array() == y.array()).all());
  CHECK((layer_dx.array() == dx.array()).all());
  std::string names;
  layer.for_each_parameter([&](ek::ParameterRef<float> p) {
    names += std::string(p.name) + " ";
    CHECK_FALSE(p.weight_decay);
  });
  CHECK(names == "alpha weight bias ");
  CHECK(*layer.alpha.gradient() == dalpha);
  CHECK((Eigen::Map<Vector<float>>(layer.weight.gradient(), 24) == dweight).all());
  CHECK((Eigen::Map<Vector<float>>(layer.bias.gradient(), 24) == dbias).all());
  CHECK(*ek::Dyt<float>(3, {}, 0.25).alpha.value() == 0.25f);
  CHECK_THROWS_AS(ek::Dyt<float>(0), ek::ShapeError);
}
