#include "norms/row_norm_checks.hpp"

using namespace norms_test;
using Norm = RmsNormUnderTest;

TEMPLATE_TEST_CASE("rms_norm equals the reference on awkward shapes", "[norms][rms_norm]", SUPPORT_WIDE_SCALARS) {
  check_shapes<Norm, TestType>();
}

TEST_CASE("rms_norm's gradients equal central differences", "[norms][rms_norm]") { check_gradients<Norm>(); }

TEST_CASE("rms_norm accumulates or overwrites parameter gradients", "[norms][rms_norm]") {
  check_gradient_modes<Norm>();
}

TEST_CASE("rms_norm without saved statistics gives the same y", "[norms][rms_norm]") { check_without_saved<Norm>(); }

TEST_CASE("rms_norm saves rstd", "[norms][rms_norm]") { check_saved_statistics<Norm>(); }

TEST_CASE("rms_norm keeps NaN and infinity in their row", "[norms][rms_norm]") { check_isolation<Norm>(); }

TEST_CASE("rms_norm defaults to eps 1e-6", "[norms][rms_norm]") {
  const Data data = make_data<float>({3, 9, 1}, 1, 0, 1e-3);
  check_matrix<Norm, float>(data, ek::none, ek::none, {}, 1e-6);
}

TEST_CASE("rms_norm is invariant to the scale of its input, not to a shift", "[norms][rms_norm]") {
  const std::size_t rows = 7, length = 45;
  const Data data = make_data<float>({rows, length, 1}, 3);
  const auto x = matrix_of<RowMatrix<float>>(rows, length, data.x);
  RowMatrix<float> y(rows, length), scaled(rows, length), shifted(rows, length);
  Norm::forward(ek::serial, x, ek::none, ek::none, y, ek::none, {.eps = 0});
  Norm::forward(ek::serial, RowMatrix<float>(x * 8), ek::none, ek::none, scaled, ek::none, {.eps = 0});
  Norm::forward(ek::serial, RowMatrix<float>((x.array() + 5).matrix()), ek::none, ek::none, shifted, ek::none, {});
  CHECK((y.array() == scaled.array()).all());  // a power of two changes exponents alone
  CHECK((y - shifted).cwiseAbs().maxCoeff() > 1e-2f);
}

TEMPLATE_TEST_CASE("rms_norm of rows far from zero and of outliers", "[norms][rms_norm]", SUPPORT_WIDE_SCALARS) {
  for (std::size_t length : Counts{31, 64, 768}) {
    Data data = make_data<TestType>({6, length, 1}, length, 1e4, 1e-2);
    check_matrix<Norm, TestType>(data, vector_of<TestType>(data.weight), ek::none, {}, 1e-6);
    data = make_data<TestType>({6, length, 1}, length);
    for (std::size_t r = 0; r < 6; ++r) data.x[data.slab.at(r, 0)] = 1e4;
    check_matrix<Norm, TestType>(data, vector_of<TestType>(data.weight), ek::none, {}, 1e-6);
  }
}

TEST_CASE("rms_norm of a zero row without eps is the bias, and passes no gradient", "[norms][rms_norm]") {
  for (std::size_t length : Counts{1, 4, 16, 33}) {
    Data data = make_data<float>({5, length, 1}, length);
    for (std::size_t i = 0; i < length; ++i) data.x[data.slab.at(2, i)] = 0;
    check_matrix<Norm, float>(data, vector_of<float>(data.weight), vector_of<float>(data.bias), {.eps = 0}, 0);
  }
}
