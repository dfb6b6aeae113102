// Wrong shapes and axes: a ShapeError that names the function, the argument and both numbers, before anything is
// written.
#include "norms/norm_under_test.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

using namespace norms_test;

namespace {

// The error's text, or "no error".
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const ek::ShapeError& error) {
    return error.what();
  }
  return "no error";
}

void check_text(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    INFO("\"" << text << "\" must contain \"" << part << "\"");
    CHECK(text.find(part) != std::string::npos);
  }
}

template <class Norm>
struct Fixture {
  std::string name = Norm::name;
  RowMatrix<float> x = RowMatrix<float>::Random(32, 128), dy = RowMatrix<float>::Random(32, 128);
  RowMatrix<float> y = RowMatrix<float>::Constant(32, 128, 77), dx = y;
  Vector<float> weight = Vector<float>::Ones(128), bias = weight, dweight = weight, dbias = weight;
  typename Norm::template Saved<float> saved;

  bool untouched() const {
    return (y.array() == 77).all() && (dx.array() == 77).all() && (dweight == 1).all() && (dbias == 1).all();
  }
};

template <class Norm>
void check_forward_errors() {
  Fixture<Norm> f;
  const Vector<float> half = Vector<float>::Ones(64);
  check_text(error_of([&] { Norm::forward(ek::serial, f.x, half, f.bias, f.y, f.saved, {}); }),
             {f.name + ":", "weight", "64", "x", "128", "32x128", "axis 1"});
  check_text(error_of([&] { Norm::forward(ek::serial, f.x, f.weight, half, f.y, f.saved, {}); }),
             {f.name + ":", "bias", "64", "128"});
  RowMatrix<float> short_y = RowMatrix<float>::Constant(31, 128, 77), turned = RowMatrix<float>::Constant(128, 32, 77);
  check_text(error_of([&] { Norm::forward(ek::serial, f.x, f.weight, f.bias, short_y, f.saved, {}); }),
             {f.name + ":", "y", "31x128", "32x128"});
  check_text(error_of([&] { Norm::forward(ek::serial, f.x, f.weight, f.bias, turned, f.saved, {}); }),
             {f.name + ":", "y", "128x32", "32x128"});
  CHECK((short_y.array() == 77).all());
  CHECK((turned.array() == 77).all());
  for (int axis : {2, -3, 1000}) {
    check_text(error_of([&] { Norm::forward(ek::serial, f.x, f.weight, f.bias, f.y, f.saved, {.axis = axis}); }),
               {f.name + ":", "axis", std::to_string(axis), "2"});
  }
  // Over axis 0 there are 32 features.
  check_text(error_of([&] { Norm::forward(ek::serial, f.x, f.weight, f.bias, f.y, f.saved, {.axis = 0}); }),
             {f.name + ":", "weight", "128", "32", "axis 0"});
  CHECK(f.untouched());
}

template <class Norm>
void check_backward_errors() {
  Fixture<Norm> f;
  const std::string name = f.name + "_backward:";
  // Without a forward there is nothing to go back from.
  check_text(error_of([&] { Norm::backward(ek::serial, f.dy, f.x, f.weight, f.saved, f.dx, f.dweight, f.dbias); }),
             {name, "saved"});
  CHECK(f.untouched());
  RowMatrix<float> y = f.y;
  Norm::forward(ek::serial, f.x, f.weight, f.bias, y, f.saved, {});

  const RowMatrix<float> other = RowMatrix<float>::Random(16, 128), narrow = RowMatrix<float>::Random(32, 64);
  RowMatrix<float> other_dx = RowMatrix<float>::Constant(16, 128, 77);
  Vector<float> half = Vector<float>::Ones(64);
  check_text(error_of([&] { Norm::backward(ek::serial, other, f.x, f.weight, f.saved, f.dx, f.dweight, f.dbias); }),
             {name, "dy", "16x128", "32x128"});
  check_text(error_of([&] { Norm::backward(ek::serial, f.dy, f.x, f.weight, f.saved, other_dx, f.dweight, f.dbias); }),
             {name, "dx", "16x128", "32x128"});
  check_text(error_of([&] { Norm::backward(ek::serial, f.dy, f.x, half, f.saved, f.dx, f.dweight, f.dbias); }),
             {name, "weight", "64", "128"});
  check_text(error_of([&] { Norm::backward(ek::serial, f.dy, f.x, f.weight, f.saved, f.dx, half, f.dbias); }),
             {name, "dweight", "64", "128"});
  check_text(error_of([&] { Norm::backward(ek::serial, f.dy, f.x, f.weight, f.saved, f.dx, f.dweight, half); }),
             {name, "dbias", "64", "128"});
  // `saved` remembers the shape it comes from.
  check_text(
      error_of([&] { Norm::backward(ek::serial, other, other, f.weight, f.saved, other_dx, f.dweight, f.dbias); }),
      {name, "saved"});
  RowMatrix<float> narrow_dx = RowMatrix<float>::Constant(32, 64, 77);
  check_text(
      error_of([&] { Norm::backward(ek::serial, narrow, narrow, ek::none, f.saved, narrow_dx, ek::none, ek::none); }),
      {name, "saved", "64", "128"});
  CHECK(f.untouched());
  CHECK((other_dx.array() == 77).all());
  CHECK((narrow_dx.array() == 77).all());
  CHECK((half == 1).all());
}

}  // namespace

TEMPLATE_TEST_CASE("norms refuse wrong shapes and axes", "[norms][errors]", RmsNormUnderTest, LayerNormUnderTest,
                   BatchNormUnderTest) {
  check_forward_errors<TestType>();
}

TEMPLATE_TEST_CASE("norms refuse a backward that does not fit its forward", "[norms][errors]", RmsNormUnderTest,
                   LayerNormUnderTest, BatchNormUnderTest) {
  check_backward_errors<TestType>();
}

TEMPLATE_TEST_CASE("row norms want the axis named for ColMajor", "[norms][errors]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  const ColMatrix<float> x = ColMatrix<float>::Random(4, 6);
  ColMatrix<float> y = ColMatrix<float>::Constant(4, 6, 77);
  check_text(error_of([&] { TestType::forward(ek::serial, x, ek::none, ek::none, y, ek::none, {}); }),
             {std::string(TestType::name) + ":", "axis", "0", "1", "4x6"});
  CHECK((y.array() == 77).all());
  Eigen::Tensor<float, 3> t(2, 3, 4), t_y(2, 3, 4);
  check_text(error_of([&] { TestType::forward(ek::serial, t, ek::none, ek::none, t_y, ek::none, {}); }),
             {std::string(TestType::name) + ":", "axis", "2x3x4"});
}

TEMPLATE_TEST_CASE("row norms want neighbouring axes", "[norms][errors]", RmsNormUnderTest, LayerNormUnderTest) {
  Eigen::Tensor<float, 3, Eigen::RowMajor> x(2, 3, 4), y(2, 3, 4);
  x.setZero();
  y.setConstant(77);
  check_text(error_of([&] {
               TestType::forward(ek::serial, x, ek::none, ek::none, y, ek::none, {.axis = {0, 2}});
             }),
             {std::string(TestType::name) + ":", "ax"});
  CHECK((std::vector<float>(y.data(), y.data() + y.size()) == std::vector<float>(24, 77)));
}

TEST_CASE("rms_norm's complaint about a weight reads as documented", "[norms][errors]") {
  Fixture<RmsNormUnderTest> f;
  const Vector<float> half = Vector<float>::Ones(64);
  CHECK(error_of([&] { ek::rms_norm(ek::serial, f.x, half, f.y, f.saved); }) ==
        "rms_norm: weight has 64 values, x has 128 features (x is 32x128, axis 1)");
}

TEST_CASE("a ShapeError is an invalid_argument", "[norms][errors]") {
  Fixture<LayerNormUnderTest> f;
  const Vector<float> half = Vector<float>::Ones(64);
  CHECK_THROWS_AS(ek::layer_norm(ek::serial, f.x, half, half, f.y, f.saved), std::invalid_argument);
}

TEST_CASE("the fused and the fused backward name themselves", "[norms][errors]") {
  Fixture<RmsNormUnderTest> f;
  const RowMatrix<float> small = RowMatrix<float>::Random(31, 128);
  RowMatrix<float> sum = f.y;
  check_text(error_of([&] { ek::add_rms_norm(ek::serial, f.x, small, f.weight, sum, f.y, f.saved); }),
             {"add_rms_norm:", "residual", "31x128", "32x128"});
  CHECK((sum.array() == 77).all());
  CHECK(f.untouched());
  ek::LayerNormSaved<float> saved;
  check_text(error_of([&] { ek::add_layer_norm(ek::serial, f.x, small, f.weight, f.bias, sum, f.y, saved); }),
             {"add_layer_norm:", "residual", "31x128", "32x128"});
  RowMatrix<float> y(32, 128);
  ek::add_layer_norm(ek::serial, f.x, f.x, f.weight, f.bias, sum, y, saved);
  check_text(error_of([&] {
               ek::add_layer_norm_backward(ek::serial, f.dy, small, sum, f.weight, saved, f.dx, f.dweight, f.dbias);
             }),
             {"add_layer_norm_backward:", "dsum", "31x128", "32x128"});
  CHECK(f.untouched());
}
