// A row's results must not depend on its place in the batch.
#include "norms_bits/bits.hpp"

using namespace bits_test;

namespace {

// Enough rows for whatever handles several of them at a time, and a rest.
constexpr ek::Index batch_rows = 13;

template <class Norm, class T>
void check_places(std::size_t features) {
  const auto length = ek::Index(features);
  const Matrix<T> x = random_matrix<T>(batch_rows, length, features),
                  dy = random_matrix<T>(batch_rows, length, 2 * features);
  const Vector<T> weight = random_matrix<T>(length, 1, 3).array(), bias = random_matrix<T>(length, 1, 4).array();
  const Results<T> batch = Norm::run(ek::serial, x, dy, weight, bias);
  int changed = 0;
  for (ek::Index row = 0; row < batch_rows; ++row) {
    const Results<T> alone = Norm::run(ek::serial, Matrix<T>(x.row(row)), Matrix<T>(dy.row(row)), weight, bias);
    changed += !same_row(batch, row, alone, 0);
    // The same row at the head, in the middle and at the end of other batches.
    for (ek::Index rows : {2, 3, 5, 13}) {
      for (ek::Index place : {ek::Index(0), rows / 2, rows - 1}) {
        Matrix<T> other_x = x.topRows(rows), other_dy = dy.topRows(rows);
        other_x.row(place) = x.row(row);
        other_dy.row(place) = dy.row(row);
        changed += !same_row(Norm::run(ek::serial, other_x, other_dy, weight, bias), place, alone, 0);
      }
    }
  }
  INFO(Norm::name << " of " << features << " features, scalar of " << sizeof(T) << " bytes");
  CHECK(changed == 0);
}

// Memory that starts in the middle of a pack is the same row.
template <class Norm, class T>
void check_alignment(std::size_t features) {
  const auto length = ek::Index(features);
  const Matrix<T> wide_x = random_matrix<T>(3, length + 5, features), dy = random_matrix<T>(3, length, 2);
  const Vector<T> weight = random_matrix<T>(length, 1, 3).array();
  Matrix<T> expected(3, length), got(3, length + 5);
  const Matrix<T> x = wide_x.rightCols(length);
  ek::layer_norm(ek::serial, x, weight, ek::none, expected, ek::none);
  auto target = got.rightCols(length);
  const auto source = wide_x.rightCols(length);
  ek::layer_norm(ek::serial, source, weight, ek::none, target, ek::none);
  INFO(features << " features");
  CHECK((got.rightCols(length).array() == expected.array()).all());
}

}  // namespace

TEMPLATE_TEST_CASE("a row has the same bits wherever it stands in the batch", "[norms][bits]", Rms, Layer, AddRms,
                   AddLayer) {
  for (std::size_t length : lengths) {
    check_places<TestType, float>(length);
    check_places<TestType, double>(length);
  }
}

TEMPLATE_TEST_CASE("a row has the same bits at every alignment", "[norms][bits]", float, double) {
  for (std::size_t length : lengths) check_alignment<Layer, TestType>(length);
}
