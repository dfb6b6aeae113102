// Outputs that share memory with inputs: exactly the same memory is allowed, anything between is an error.
#include "norms/norm_under_test.hpp"

using namespace norms_test;

namespace {

template <class Norm, class T>
void check_in_place(std::size_t rows, std::size_t length, int axis) {
  INFO(Norm::name << " of " << rows << " x " << length << " over axis " << axis);
  const Slab s = axis == 0 ? Slab{1, rows, length} : Slab{rows, length, 1};
  const Data data = make_data<T>(s, rows + length);
  const auto x = matrix_of<RowMatrix<T>>(rows, length, data.x), dy = matrix_of<RowMatrix<T>>(rows, length, data.dy);
  const auto weight = vector_of<T>(data.weight), bias = vector_of<T>(data.bias);
  typename Norm::template Saved<T> saved, saved_in_place;
  RowMatrix<T> y(rows, length), dx(rows, length);
  Norm::forward(ek::serial, x, weight, bias, y, saved, {.axis = axis});
  Vector<T> dweight = Vector<T>::Zero(ek::Index(data.features)), dbias = dweight, dweight_in_place = dweight,
            dbias_in_place = dweight;
  Norm::backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias);

  RowMatrix<T> gradient = dy;
  Norm::backward(ek::serial, gradient, x, weight, saved, gradient, dweight_in_place, dbias_in_place);
  CHECK((gradient.array() == dx.array()).all());
  CHECK((dweight_in_place == dweight).all());
  CHECK((dbias_in_place == dbias).all());

  RowMatrix<T> input = x;
  dweight_in_place.setZero();
  dbias_in_place.setZero();
  Norm::backward(ek::serial, dy, input, weight, saved, input, dweight_in_place, dbias_in_place);
  CHECK((input.array() == dx.array()).all());
  CHECK((dweight_in_place == dweight).all());

  RowMatrix<T> activation = x;
  Norm::forward(ek::serial, activation, weight, bias, activation, saved_in_place, {.axis = axis});
  CHECK((activation.array() == y.array()).all());

  // x is gone: the backward that needs it must say so, and touch nothing.
  RowMatrix<T> untouched = RowMatrix<T>::Constant(ek::Index(rows), ek::Index(length), T(77));
  CHECK_THROWS_AS(
      Norm::backward(ek::serial, dy, activation, weight, saved_in_place, untouched, dweight_in_place, dbias_in_place),
      ek::ShapeError);
  CHECK((untouched.array() == T(77)).all());
  CHECK((dweight_in_place == dweight).all());
}

template <class Norm>
void check_partial_overlap() {
  const ek::Index rows = 6, length = 20;
  const Data data = make_data<float>({6, 20, 1}, 4);
  std::vector<float> memory(400);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = float(i % 13);
  const std::vector<float> before = memory;
  const auto at = [&](std::size_t offset) {
    return Eigen::Map<RowMatrix<float>>(memory.data() + offset, rows, length);
  };
  const auto weight = vector_of<float>(data.weight);
  typename Norm::template Saved<float> saved;
  for (std::size_t offset : Counts{1, 4, 20, 119}) {
    INFO(Norm::name << ", offset " << offset);
    CHECK_THROWS_AS(Norm::forward(ek::serial, at(0), weight, ek::none, at(offset), saved, {}), ek::ShapeError);
    CHECK_THROWS_AS(Norm::forward(ek::serial, at(offset), weight, ek::none, at(0), saved, {}), ek::ShapeError);
    CHECK((memory == before));
  }
  // Neighbours are no overlap.
  CHECK_NOTHROW(Norm::forward(ek::serial, at(0), weight, ek::none, at(120), saved, {}));

  RowMatrix<float> x = at(0), y(rows, length);
  Norm::forward(ek::serial, x, weight, ek::none, y, saved, {});
  const std::vector<float> middle = memory;
  CHECK_THROWS_AS(Norm::backward(ek::serial, at(0), x, weight, saved, at(7), ek::none, ek::none), ek::ShapeError);
  CHECK((memory == middle));

  // The same start with another stride is no exact match either.
  using Strided = Eigen::Map<RowMatrix<float>, 0, Eigen::OuterStride<>>;
  Strided wide(memory.data(), rows, length, Eigen::OuterStride<>(length + 1));
  CHECK_THROWS_AS(Norm::forward(ek::serial, at(0), weight, ek::none, wide, saved, {}), ek::ShapeError);
  CHECK((memory == middle));
}

}  // namespace

TEMPLATE_TEST_CASE("norms in place give the bits of out of place", "[norms][aliasing]", RmsNormUnderTest,
                   LayerNormUnderTest, BatchNormUnderTest) {
  for (std::size_t length : Counts{1, 7, 15, 16, 17, 33, 64, 77, 769}) {
    check_in_place<TestType, float>(9, length, 1);
    // The loops are the same for every norm; one of them in double is enough for the other pack width.
    if constexpr (std::is_same_v<TestType, LayerNormUnderTest>) check_in_place<TestType, double>(9, length, 1);
  }
  check_in_place<TestType, float>(19, 35, 0);
}

TEMPLATE_TEST_CASE("norms refuse outputs that overlap an input partially", "[norms][aliasing]", RmsNormUnderTest,
                   LayerNormUnderTest, BatchNormUnderTest) {
  check_partial_overlap<TestType>();
}

TEMPLATE_TEST_CASE("the stride between rows is no difference where there is one row", "[norms][aliasing]",
                   RmsNormUnderTest, LayerNormUnderTest) {
  RowMatrix<float> memory = RowMatrix<float>::Random(1, 20), y(1, 20);
  TestType::forward(ek::serial, memory, ek::none, ek::none, y, ek::none, {});
  Eigen::Map<RowMatrix<float>, 0, Eigen::OuterStride<>> strided(memory.data(), 1, 20, Eigen::OuterStride<>(37));
  CHECK_NOTHROW(TestType::forward(ek::serial, memory, ek::none, ek::none, strided, ek::none, {}));
  CHECK((memory.array() == y.array()).all());
}

TEMPLATE_TEST_CASE("norms refuse parameters inside the output", "[norms][aliasing]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  std::vector<float> memory(200, 1.0f);
  Eigen::Map<RowMatrix<float>> y(memory.data(), 6, 20);
  Eigen::Map<Vector<float>> weight(memory.data() + 30, 20);
  const RowMatrix<float> x = RowMatrix<float>::Random(6, 20);
  CHECK_THROWS_AS(TestType::forward(ek::serial, x, weight, ek::none, y, ek::none, {}), ek::ShapeError);
  CHECK((memory == std::vector<float>(200, 1.0f)));
}
