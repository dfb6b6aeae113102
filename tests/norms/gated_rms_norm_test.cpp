#include "norms/gated_rms_norm_checks.hpp"
#include "support/gradient_check.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

using namespace norms_test;

TEST_CASE("gated_rms_norm equals the reference on awkward shapes", "[norms][gated_rms_norm]") {
  using T = float;
  for (const auto order : gate_orders)
    for (const auto& shape : support::awkward_shapes())
      check_gated({shape.rows, shape.length, 1}, RowMatrix<T>(shape.rows, shape.length), weight_of<T>(shape.length),
                  {.order = order, .unit_offset = shape.rows == 3}, epsilon_of<T>());
}

TEST_CASE("gated_rms_norm works along any axis of either storage order", "[norms][gated_rms_norm]") {
  for (const auto order : gate_orders) {
    const auto weight = weight_of<float>(19);
    const double epsilon = epsilon_of<float>();
    check_gated({1, 19, 35}, RowMatrix<float>(19, 35), weight, {.axis = 0, .order = order}, epsilon);
    check_gated({35, 19, 1}, ColMatrix<float>(19, 35), weight, {.axis = 0, .order = order}, epsilon);
    check_gated({3, 19, 4}, Eigen::Tensor<float, 3, Eigen::RowMajor>(3, 19, 4), weight, {.axis = 1, .order = order},
                epsilon);
  }
}

TEST_CASE("gated_rms_norm's gradients equal central differences", "[norms][gated_rms_norm]") {
  const std::size_t rows = 3, length = 9;
  const Data data = make_data<double>({rows, length, 1}, 3);
  const Values gate = support::normal<double>(rows * length, 4, 0, 2);
  const auto matrix = [&](const Values& v) { return matrix_of<RowMatrix<double>>(rows, length, v); };
  for (const auto order : gate_orders) {
    const ek::GatedRmsNormOptions options{.eps = 1e-2, .order = order};
    const auto loss = [&](const Values& x, const Values& z, const Values& weight) {
      RowMatrix<double> y(rows, length);
      ek::gated_rms_norm(ek::serial, matrix(x), matrix(z), vector_of<double>(weight), y, ek::none, options);
      return support::weighted_sum(values_of(y), data.dy);
    };
    ek::GatedRmsNormSaved<double> saved;
    RowMatrix<double> y(rows, length), dx(rows, length), dgate(rows, length);
    const auto weight = vector_of<double>(data.weight);
    Vector<double> dweight = Vector<double>::Zero(length);
    ek::gated_rms_norm(ek::serial, matrix(data.x), matrix(gate), weight, y, saved, options);
    ek::gated_rms_norm_backward(ek::serial, matrix(data.dy), matrix(data.x), matrix(gate), weight, saved, dx, dgate,
                                dweight);
    const auto compare = [](const auto& got, const auto& f, const Values& at) {
      CHECK(support::gradient_distance(values_of(got), support::central_differences(f, at)) <
            support::gradient_tolerance);
    };
    compare(
        dx, [&](const Values& v) { return loss(v, gate, data.weight); }, data.x);
    compare(
        dgate, [&](const Values& v) { return loss(data.x, v, data.weight); }, gate);
    compare(
        dweight, [&](const Values& v) { return loss(data.x, gate, v); }, data.weight);
  }
}

TEST_CASE("gated_rms_norm keeps NaN in its row, and huge gates shut or open", "[norms][gated_rms_norm]") {
  for (const auto order : gate_orders) {
    for (const ek::Index length : {5, 40}) {
      RowMatrix<float> x = RowMatrix<float>::Random(4, length), gate = RowMatrix<float>::Random(4, length);
      RowMatrix<float> y(4, length), dx(4, length), dgate(4, length);
      x(1, 0) = NAN;
      gate(3, 1) = -1e30f;
      ek::GatedRmsNormSaved<float> saved;
      ek::gated_rms_norm(ek::serial, x, gate, ek::none, y, saved, {.order = order});
      ek::gated_rms_norm_backward(ek::serial, x, x, gate, ek::none, saved, dx, dgate, ek::none);
      for (ek::Index r = 0; r < 4; ++r) {
        CHECK(y.row(r).array().isNaN().any() == (r == 1));
        CHECK(dx.row(r).array().isNaN().any() == (r == 1));
        CHECK(dgate.row(r).array().isNaN().any() == (r == 1));
      }
      CHECK(y(3, 1) == 0);
      CHECK(dgate(3, 1) == 0);
      x.row(1).setZero();
      ek::gated_rms_norm(ek::serial, x, gate, ek::none, y, saved, {.order = order});
      CHECK((y.row(1).array() == 0).all());
    }
  }
}

TEST_CASE("gated_rms_norm names what does not fit", "[norms][gated_rms_norm][errors]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(4, 12), gate = RowMatrix<float>::Random(4, 11);
  RowMatrix<float> y(4, 12), dx(4, 12);
  ek::GatedRmsNormSaved<float> saved;
  CHECK_THROWS_WITH(ek::gated_rms_norm(ek::serial, x, gate, ek::none, y, saved),
                    "gated_rms_norm: gate is 4x11, x is 4x12, axis 1");
  CHECK_THROWS_WITH(ek::gated_rms_norm_backward(ek::serial, x, x, x, ek::none, saved, y, dx, ek::none),
                    support::contains_text("gated_rms_norm_backward: saved is empty"));
  ek::gated_rms_norm(ek::serial, x, x, ek::none, y, saved);
  CHECK_THROWS_WITH(ek::gated_rms_norm_backward(ek::serial, x, x, x, ek::none, saved, y, y, ek::none),
                    "gated_rms_norm_backward: dgate overlaps dx, expected memory apart from it");
  CHECK_THROWS_AS(ek::GatedRmsNorm<float>(0), ek::ShapeError);
}
