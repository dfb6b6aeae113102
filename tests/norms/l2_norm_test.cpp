#include "norms/l2_norm_under_test.hpp"

using namespace norms_test;
using Norm = L2NormUnderTest;

TEMPLATE_TEST_CASE("l2_norm equals the reference on awkward shapes", "[norms][l2_norm]", SUPPORT_WIDE_SCALARS) {
  check_shapes<Norm, TestType>();
}

TEST_CASE("l2_norm's gradients equal central differences", "[norms][l2_norm]") { check_gradients<Norm>(); }

TEST_CASE("l2_norm accumulates or overwrites parameter gradients", "[norms][l2_norm]") { check_gradient_modes<Norm>(); }

TEST_CASE("l2_norm without saved statistics gives the same y", "[norms][l2_norm]") { check_without_saved<Norm>(); }

TEST_CASE("l2_norm keeps NaN and infinity in their row", "[norms][l2_norm]") { check_isolation<Norm>(); }

TEST_CASE("l2_norm saves the scale and whether it was clamped", "[norms][l2_norm]") {
  Data data = make_data<double>({4, 19, 1}, 43);
  for (std::size_t i = 0; i < 19; ++i) data.x[data.slab.at(2, i)] *= 1e-3;
  ek::L2NormSaved<double> saved;
  RowMatrix<double> y(4, 19);
  ek::l2_norm(ek::serial, matrix_of<RowMatrix<double>>(4, 19, data.x), ek::none, y, saved, {.eps = 0.5});
  const auto expected = reference::l2_norm(data.slab, data.x, {}, {}, {0.5, false, {}});
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(std::abs(saved.scale(ek::Index(r)) / expected.rstd[r] - 1) < support::tolerance(19, 1, epsilon_of<double>()));
    CHECK(saved.clamped(ek::Index(r)) == (r == 2));
  }
}

// The eps stands outside the root: it changes nothing above itself, and the length nothing below it.
TEST_CASE("l2_norm clamps short rows", "[norms][l2_norm]") {
  for (const std::size_t length : Counts{1, 4, 16, 33}) {
    Data data = make_data<double>({6, length, 1}, length + 5);
    for (std::size_t r = 0; r < 6; ++r)
      for (std::size_t i = 0; i < length; ++i) data.x[data.slab.at(r, i)] *= std::pow(10.0, -double(r));
    const auto weight = vector_of<double>(data.weight);
    for (const double eps : {1e-12, 1e-3, 0.1}) check_matrix<Norm, double>(data, weight, ek::none, {.eps = eps}, eps);

    const auto loss = [&](const Values& x) {
      RowMatrix<double> y(6, length);
      ek::l2_norm(ek::serial, matrix_of<RowMatrix<double>>(6, length, x), weight, y, ek::none, {.eps = 0.05});
      return support::weighted_sum(values_of(y), data.dy);
    };
    RowMatrix<double> y(6, length), dx(6, length);
    ek::L2NormSaved<double> saved;
    const auto x = matrix_of<RowMatrix<double>>(6, length, data.x);
    ek::l2_norm(ek::serial, x, weight, y, saved, {.eps = 0.05});
    ek::l2_norm_backward(ek::serial, matrix_of<RowMatrix<double>>(6, length, data.dy), x, weight, saved, dx, ek::none);
    CHECK(support::gradient_distance(values_of(dx), support::central_differences(loss, data.x)) <
          support::gradient_tolerance);
  }
}

TEST_CASE("l2_norm gives rows of length 1 whatever their scale", "[norms][l2_norm]") {
  const std::size_t rows = 7, length = 45;
  const Data data = make_data<float>({rows, length, 1}, 3);
  const auto x = matrix_of<RowMatrix<float>>(rows, length, data.x);
  RowMatrix<float> y(rows, length), scaled(rows, length);
  ek::l2_norm(ek::serial, x, ek::none, y, ek::none);
  CHECK((y.rowwise().norm().array() - 1).abs().maxCoeff() < 1e-6f);
  for (const float power : {0x1p-20f, 8.0f, 0x1p70f, 0x1p120f}) {
    INFO("times " << power);
    ek::l2_norm(ek::serial, RowMatrix<float>(x * power), ek::none, scaled, ek::none);
    CHECK((y.array() == scaled.array()).all());  // a power of two changes exponents alone
  }
  ek::l2_norm(ek::serial, RowMatrix<float>(x * 0x1p-100f), ek::none, scaled, ek::none, {.eps = 0});
  CHECK((y.array() == scaled.array()).all());
}

// One row of each kind beside ordinary ones: its neighbours in a pack must not change.
TEMPLATE_TEST_CASE("l2_norm of huge, tiny and zero rows", "[norms][l2_norm]", SUPPORT_WIDE_SCALARS) {
  const double huge = std::is_same_v<TestType, float> ? 1e37 : 1e300, tiny = 1 / huge;
  for (const double eps : {0.0, 1e-12}) {
    for (const std::size_t length : Counts{1, 4, 17, 130}) {
      Data data = make_data<TestType>({7, length, 1}, length);
      for (std::size_t i = 0; i < length; ++i) {
        const auto scale = [&](std::size_t row, double by) {
          double& x = data.x[data.slab.at(row, i)];
          x = double(static_cast<TestType>(x * by));
        };
        scale(1, huge);
        scale(3, tiny);
        scale(5, 0);
        // The gradient of a tiny row is 1/tiny; it has to stay a number of the type.
        if (eps == 0) data.dy[data.slab.at(3, i)] *= 1e-3;
      }
      check_matrix<Norm, TestType>(data, vector_of<TestType>(data.weight), ek::none, {.eps = eps}, eps);
    }
  }
}

TEST_CASE("l2_norm of a zero row is the bias, and passes dy/eps, or nothing without eps", "[norms][l2_norm]") {
  const RowMatrix<float> x = RowMatrix<float>::Zero(3, 20), dy = RowMatrix<float>::Ones(3, 20);
  RowMatrix<float> y(3, 20), dx(3, 20);
  ek::L2NormSaved<float> saved;
  ek::l2_norm(ek::serial, x, ek::none, Vector<float>::Constant(20, 3).eval(), y, saved);
  CHECK((y.array() == 3).all());
  ek::l2_norm_backward(ek::serial, dy, x, ek::none, saved, dx, ek::none);
  CHECK((dx.array() == 1e12f).all());
  ek::l2_norm(ek::serial, x, ek::none, y, saved, {.eps = 0});
  ek::l2_norm_backward(ek::serial, dy, x, ek::none, saved, dx, ek::none);
  CHECK((y.array() == 0).all());
  CHECK((dx.array() == 0).all());
}
