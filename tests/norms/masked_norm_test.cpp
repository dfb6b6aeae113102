#include "norms/masked_norm_checks.hpp"
#include "support/gradient_check.hpp"

using namespace norms_test;

namespace {

template <class Norm>
void check_shapes() {
  for (const Padding padding : paddings)
    for (const auto& shape : support::awkward_shapes()) {
      const Slab s{shape.rows, shape.length, 1};
      const Data data = make_data<float>(s, s.size());
      const Values set = mask_of(s, padding);
      check_masked<Norm>(data, RowMatrix<float>(s.outer, s.length), bools(s, set), set, vector_of<float>(data.weight),
                         vector_of<float>(data.bias), {.unit_offset = shape.rows == 3}, epsilon_of<float>());
    }
}

// Rows that begin with padding have a first shift that is of no use.
template <class Norm, class T>
void check_hard_rows(double mean, double spread, double eps, double offset = 0) {
  for (const Padding padding : {Padding::right, Padding::left, Padding::holes})
    for (const std::size_t length : Counts{9, 40, 333}) {
      const Slab s{24, length, 1};
      Data data = make_data<T>(s, length, mean, spread);
      if (offset != 0)
        for (double& v : data.x) v = std::round(v * 0x1p12) * 0x1p-12;
      const Values set = mask_of(s, padding);
      const auto weight = vector_of<T>(data.weight), bias = vector_of<T>(data.bias);
      check_masked<Norm>(data, RowMatrix<T>(24, length), bools(s, set), set, weight, bias, {.eps = eps},
                         epsilon_of<T>(), 0, offset);
      check_masked<Norm>(data, ColMatrix<T>(length, 24), Mask(bools(s, set).transpose()), set, weight, bias,
                         {.eps = eps, .axis = 0}, epsilon_of<T>(), 0, offset);
    }
}

template <class Norm>
void check_gradients(Padding padding) {
  const Slab s{5, 11, 1};
  Data data = make_data<double>(s, 3);
  const Values set = mask_of(s, padding);
  const Mask mask = bools(s, set);
  const typename Norm::Options options{.eps = 1e-2};
  const auto loss = [&](const Values& x, const Values& weight, const Values& bias) {
    RowMatrix<double> y(5, 11);
    Norm::forward(ek::serial, matrix<double>(data, x), mask, vector_of<double>(weight), vector_of<double>(bias), y,
                  ek::none, options);
    return support::weighted_sum(values_of(y), data.dy);
  };
  typename Norm::template Saved<double> saved;
  RowMatrix<double> y(5, 11), dx(5, 11);
  const auto weight = vector_of<double>(data.weight), bias = vector_of<double>(data.bias);
  Vector<double> dweight = Vector<double>::Zero(11), dbias = dweight;
  Norm::forward(ek::serial, matrix<double>(data, data.x), mask, weight, bias, y, saved, options);
  Norm::backward(ek::serial, matrix<double>(data, data.dy), matrix<double>(data, data.x), mask, weight, saved, dx,
                 dweight, dbias);
  const auto compare = [](const auto& got, const auto& f, const Values& at) {
    CHECK(support::gradient_distance(values_of(got), support::central_differences(f, at)) <
          support::gradient_tolerance);
  };
  compare(
      dx, [&](const Values& v) { return loss(v, data.weight, data.bias); }, data.x);
  compare(
      dweight, [&](const Values& v) { return loss(data.x, v, data.bias); }, data.weight);
  if (Norm::centred)
    compare(
        dbias, [&](const Values& v) { return loss(data.x, data.weight, v); }, data.bias);
}

template <class Norm>
void check_rows_of_none_and_one(ek::Index length, double eps, float value, float at_bias) {
  INFO(Norm::name << ", rows of " << length << ", eps " << eps << ", value " << value);
  RowMatrix<float> x = RowMatrix<float>::Constant(7, length, nan_of<float>()), dy = x, y = x, dx = x;
  Mask mask = Mask::Constant(7, length, false);
  const ek::Index places[] = {0, 1, length - 1, length / 2};  // of rows 1, 2, 4, 5; rows 0, 3 and 6 have none
  for (const auto& [row, k] : {std::pair{1, 0}, {2, 1}, {4, 2}, {5, 3}}) {
    mask(row, places[k]) = true;
    x(row, places[k]) = value * float(row);
    dy(row, places[k]) = 3;
  }
  const Vector<float> weight = Vector<float>::Constant(length, 0.7f), bias = Vector<float>::Constant(length, at_bias);
  Vector<float> dweight = Vector<float>::Zero(length), dbias = dweight;
  typename Norm::template Saved<float> saved;
  Norm::forward(ek::serial, x, mask, weight, bias, y, saved, {.eps = eps});
  Norm::backward(ek::serial, dy, x, mask, weight, saved, dx, dweight, dbias);
  for (ek::Index r = 0; r < 7; ++r) CHECK(std::isfinite(saved.rstd(r)));
  CHECK((mask || y.array() == 0).all());
  CHECK((mask || dx.array() == 0).all());
  for (const auto& [row, k] : {std::pair{1, 0}, {2, 1}, {4, 2}, {5, 3}}) {
    const float at = y(row, places[k]);
    if (Norm::centred) {
      CHECK(at == at_bias);
      CHECK(dx(row, places[k]) == 0);
    } else {
      const double x2 = double(value) * double(row) * double(value) * double(row);
      CHECK(double(at) == Approx(0.7 * std::sqrt(x2 / (x2 + eps))));
    }
  }
  if (Norm::centred) {
    CHECK((dweight == 0).all());
    CHECK(dbias.sum() == 12);
  }
}

template <class Norm>
void check_errors() {
  const RowMatrix<float> x = RowMatrix<float>::Random(4, 12);
  RowMatrix<float> y = RowMatrix<float>::Constant(4, 12, 7);
  const std::string name = Norm::name;
  typename Norm::template Saved<float> saved;
  const auto forward = [&](const auto& mask, auto& out) {
    Norm::forward(ek::serial, x, mask, ek::none, ek::none, out, saved, {});
  };
  const auto backward = [&](const auto& mask) {
    Norm::backward(ek::serial, x, x, mask, ek::none, saved, y, ek::none, ek::none);
  };
  const Mask right = Mask::Constant(4, 12, true);
  for (const auto& [rows, cols] : {std::pair{4, 11}, {12, 4}, {1, 12}, {3, 1}})
    CHECK_THROWS_WITH(forward(Mask(Mask::Constant(rows, cols, true)), y),
                      name + ": mask is " + std::to_string(rows) + "x" + std::to_string(cols) +
                          ", expected one value for each element or each row of x (x is 4x12, axis 1)");
  CHECK_THROWS_WITH(forward(RowsMask(RowsMask::Constant(12, true)), y),
                    name + ": mask is 12, expected one value for each element or each row of x (x is 4x12, axis 1)");
  CHECK_THROWS_WITH(backward(right), support::contains_text(name + "_backward: saved is empty"));
  CHECK((y.array() == 7).all());
  CHECK(saved.call.rows == -1);
  RowMatrix<float> memory = x;
  CHECK_THROWS_WITH(forward(memory, memory), name + ": y overlaps mask, expected memory apart from it");
  CHECK((memory.array() == x.array()).all());
  forward(right, y);
  y.setConstant(7);
  CHECK_THROWS_WITH(backward(RowsMask(RowsMask::Constant(5, true))),
                    support::contains_text(name + "_backward: mask is 5, expected one value"));
  const RowMatrix<float> wide = RowMatrix<float>::Random(4, 13);
  CHECK_THROWS_WITH(Norm::backward(ek::serial, wide, wide, right, ek::none, saved, y, ek::none, ek::none),
                    support::contains_text("saved holds 4 rows of 12, x has 4 rows of 13"));
  CHECK((y.array() == 7).all());
}

}  // namespace

TEST_CASE("masked norms equal those of cut-out rows", "[norms][masked_norm]") {
  check_shapes<MaskedLayerNorm>();
  check_shapes<MaskedRmsNorm>();
}

TEST_CASE("masked norms of rows far from 0, some beginning with padding", "[norms][masked_norm]") {
  check_hard_rows<MaskedLayerNorm, float>(1e4, 1e-2, 1e-5);
  check_hard_rows<MaskedLayerNorm, float>(1e4, 1e-2, 0);
  check_hard_rows<MaskedLayerNorm, double>(0, 1, 0, 0x1p40);
  check_hard_rows<MaskedRmsNorm, float>(1e4, 1e-2, 0);
}

TEST_CASE("gradients of masked norms equal central differences", "[norms][masked_norm]") {
  for (const Padding padding : paddings) {
    check_gradients<MaskedLayerNorm>(padding);
    check_gradients<MaskedRmsNorm>(padding);
  }
}

TEST_CASE("masked rows without a set place, and with one", "[norms][masked_norm]") {
  for (const ek::Index length : {3, 40, 77})
    for (const double eps : {1e-5, 0.0}) {
      check_rows_of_none_and_one<MaskedLayerNorm>(length, eps, 1234.567f, 0.3f);
      check_rows_of_none_and_one<MaskedLayerNorm>(length, eps, 1.234567e-3f, 0);
      check_rows_of_none_and_one<MaskedRmsNorm>(length, eps, 1.234567e-3f, 0);
    }
}

TEST_CASE("masked norms name what does not fit", "[norms][masked_norm][errors]") {
  check_errors<MaskedLayerNorm>();
  check_errors<MaskedRmsNorm>();
}
