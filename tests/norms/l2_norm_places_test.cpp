// Where l2_norm's numbers lie, and in what: layouts, devices, memory shared with inputs, small scalars, options.
#include "norms/l2_norm_under_test.hpp"
#include "support/devices.hpp"

using namespace norms_test;
using Norm = L2NormUnderTest;

TEST_CASE("l2_norm equals the reference for every option", "[norms][l2_norm]") { check_options<Norm, float>(); }

TEST_CASE("l2_norm works along any axis of either storage order", "[norms][l2_norm]") {
  const auto check = [](const Slab& s, int axis, auto x) {
    auto dy = x, y = x, dx = x;
    const Data data = make_data<float>(s, s.size());
    fill(x, data.x);
    fill(dy, data.dy);
    check_against_reference<Norm>(ek::serial, data, x, dy, y, dx, vector_of<float>(data.weight),
                                  vector_of<float>(data.bias), {.axis = axis}, 1e-12);
  };
  using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;
  using ColTensor3 = Eigen::Tensor<float, 3>;
  check({1, 19, 35}, 0, RowMatrix<float>(19, 35));
  check({19, 35, 1}, 0, ColMatrix<float>(35, 19));
  check({1, 19, 35}, 1, ColMatrix<float>(35, 19));
  check({12, 19, 1}, 2, Tensor3(3, 4, 19));
  check({3, 19, 4}, 1, Tensor3(3, 19, 4));
  check({1, 19, 12}, 2, ColTensor3(4, 3, 19));
}

TEST_CASE("l2_norm gives the same bits on every device and in place", "[norms][l2_norm][devices]") {
  for (const std::size_t features : Counts{5, 31, 64, 77}) {
    for (const int axis : {0, 1}) {
      const std::size_t rows = 257;
      const Slab s = axis == 0 ? Slab{1, rows, features} : Slab{rows, features, 1};
      const Data data = make_data<float>(s, features);
      const auto x = matrix_of<RowMatrix<float>>(rows, features, data.x),
                 dy = matrix_of<RowMatrix<float>>(rows, features, data.dy);
      const auto weight = vector_of<float>(data.weight);
      RowMatrix<float> y(rows, features), dx(rows, features);
      Vector<float> dweight = Vector<float>::Zero(ek::Index(s.length));
      ek::L2NormSaved<float> saved, other;
      ek::l2_norm(ek::serial, x, weight, y, saved, {.axis = axis});
      ek::l2_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight);
      support::for_each_device([&](const auto& device) {
        RowMatrix<float> got_y = x, got_dx = dy;
        Vector<float> got = Vector<float>::Zero(ek::Index(s.length));
        ek::l2_norm(device, got_y, weight, got_y, other, {.axis = axis});  // in place
        CHECK((got_y.array() == y.array()).all());
        CHECK_THROWS_AS(ek::l2_norm_backward(device, dy, got_y, weight, other, got_dx, got), ek::ShapeError);
        ek::l2_norm(device, x, weight, got_y, other, {.axis = axis});
        ek::l2_norm_backward(device, got_dx, x, weight, other, got_dx, got);  // in place
        CHECK((got_dx.array() == dx.array()).all());
        CHECK((got == dweight).all());
      });
    }
  }
}

TEMPLATE_TEST_CASE("l2_norm of small scalars with float weights", "[norms][l2_norm]", SUPPORT_SMALL_SCALARS) {
  const std::size_t rows = 5, length = 33;
  Data data = make_data<TestType>({rows, length, 1}, 12);
  data.weight = support::normal<float>(length, 13);
  const auto x = matrix_of<RowMatrix<TestType>>(rows, length, data.x),
             dy = matrix_of<RowMatrix<TestType>>(rows, length, data.dy);
  const auto weight = vector_of<float>(data.weight);
  RowMatrix<TestType> y(rows, length), dx(rows, length);
  Vector<float> dweight = Vector<float>::Zero(ek::Index(length));
  ek::L2NormSaved<float> saved;
  ek::l2_norm(ek::serial, x, weight, y, saved);
  ek::l2_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight);
  auto forward = reference::l2_norm(data.slab, data.x, data.weight, {}, {1e-12, false, {}});
  auto backward = reference::l2_norm_backward(data.slab, data.dy, data.x, data.weight, {1e-12, false, {}});
  // One rounding at the store, by a fixed step below the least normal number; the sums are float's.
  const bool half = std::is_same_v<TestType, Eigen::half>;
  const double epsilon = half ? 0x1p-10 : 0x1p-7, least = half ? 0x1p-14 : 0x1p-126;
  for (double& m : forward.y_magnitude) m += least;
  for (double& m : backward.dx_magnitude) m += least;
  CHECK(worst_error(values_of(y), forward.y, forward.y_magnitude, 0, epsilon / 12) <= 1);
  CHECK(worst_error(values_of(dx), backward.dx, backward.dx_magnitude, 0, epsilon / 12) <= 1);
  CHECK(worst_error(values_of(dweight), backward.dweight, backward.dweight_magnitude, rows, epsilon_of<float>()) <= 1);
}

TEST_CASE("l2_norm names what does not fit", "[norms][l2_norm][errors]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(4, 12);
  const Vector<float> weight = Vector<float>::Ones(7);
  RowMatrix<float> y(4, 12), other(4, 11);
  Vector<float> dweight = Vector<float>::Ones(12);
  ek::L2NormSaved<float> saved;
  CHECK_THROWS_WITH(ek::l2_norm(ek::serial, x, weight, y, saved),
                    "l2_norm: weight has 7 values, x has 12 features (x is 4x12, axis 1)");
  CHECK_THROWS_WITH(ek::l2_norm(ek::serial, x, ek::none, other, saved), "l2_norm: y is 4x11, x is 4x12, axis 1");
  CHECK_THROWS_WITH(ek::l2_norm(ek::serial, x, ek::none, y, saved, {.eps = -1}),
                    support::contains_text("l2_norm: eps is -1"));
  CHECK_THROWS_WITH(ek::l2_norm_backward(ek::serial, x, x, ek::none, saved, y, ek::none),
                    "l2_norm_backward: saved is empty, expected the one that the forward filled");
  CHECK_THROWS_WITH(ek::l2_norm(ek::serial, ColMatrix<float>(x), ek::none, y, saved),
                    support::contains_text("name the axis"));
}

TEST_CASE("L2Norm is a thin user of the free functions", "[norms][l2_norm][layers]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(6, 24), dy = RowMatrix<float>::Random(6, 24);
  ek::L2Norm<float> layer(24);
  RowMatrix<float> y(6, 24), dx(6, 24), layer_y(6, 24), layer_dx(6, 24);
  ek::L2NormSaved<float> saved;
  Vector<float> weight = Vector<float>::Ones(24), dweight = Vector<float>::Zero(24);
  ek::l2_norm(ek::serial, x, weight, y, saved);
  ek::l2_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight);
  layer.forward(ek::serial, x, layer_y);
  layer.backward(ek::serial, dy, x, layer_dx);
  CHECK((layer_y.array() == y.array()).all());
  CHECK((layer_dx.array() == dx.array()).all());
  int parameters = 0;
  layer.for_each_parameter([&](ek::ParameterRef<float> p) {
    ++parameters;
    CHECK(p.name == "weight");
    CHECK((Eigen::Map<Vector<float>>(p.gradient, p.size) == dweight).all());
  });
  CHECK(parameters == 1);
}
