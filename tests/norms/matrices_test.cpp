// Every kind of Eigen matrix, layout and stride that a norm accepts, against the reference over the same memory.
#include "norms/norm_under_test.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

using namespace norms_test;
using reference::slab;

namespace {

constexpr double eps = 1e-5;

template <class Norm, class X, class Y>
void check(const Slab& s, ek::Axes axis, X& x, X& dy, Y&& y, Y&& dx) {
  using T = typename X::Scalar;
  const Data data = make_data<T>(s, s.size());
  fill(x, data.x);
  fill(dy, data.dy);
  check_against_reference<Norm>(ek::serial, data, x, dy, y, dx, vector_of<T>(data.weight), vector_of<T>(data.bias),
                                {.eps = eps, .axis = axis}, eps);
}

template <class Norm, class Matrix>
void check_matrix_kind(const Slab& s, ek::Axes axis, ek::Index rows, ek::Index cols) {
  Matrix x(rows, cols), dy(rows, cols), y(rows, cols), dx(rows, cols);
  check<Norm>(s, axis, x, dy, y, dx);

  // A block in the middle of a larger matrix, and a guard around it that must survive.
  Matrix larger[4];
  for (Matrix& m : larger) m = Matrix::Constant(rows + 5, cols + 7, 123);
  auto block = [&](int i) { return larger[i].block(2, 3, rows, cols); };
  auto x_block = block(0), dy_block = block(1);
  check<Norm>(s, axis, x_block, dy_block, block(2), block(3));
  for (Matrix& m : larger) {
    block(int(&m - larger)).setConstant(123);
    CHECK((m.array() == 123).all());
  }

  using Plain = Eigen::Matrix<typename Matrix::Scalar, Eigen::Dynamic, Eigen::Dynamic, Matrix::Options>;
  using Strided = Eigen::Map<Plain, 0, Eigen::OuterStride<>>;
  using Spread = Eigen::Map<Plain, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
  const ek::Index fast = Matrix::IsRowMajor ? cols : rows, slow = Matrix::IsRowMajor ? rows : cols;
  std::vector<std::vector<float>> memory(4, std::vector<float>(std::size_t((slow + 1) * 2 * (fast + 3)), 123));
  auto strided = [&](int i) {
    return Strided(memory[std::size_t(i)].data() + 1, rows, cols, Eigen::OuterStride<>(fast + 3));
  };
  auto x_strided = strided(0), dy_strided = strided(1);
  check<Norm>(s, axis, x_strided, dy_strided, strided(2), strided(3));
  auto spread = [&](int i) {
    return Spread(memory[std::size_t(i)].data(), rows, cols,
                  Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(2 * fast + 1, 2));
  };
  auto x_spread = spread(0), dy_spread = spread(1);
  check<Norm>(s, axis, x_spread, dy_spread, spread(2), spread(3));

  if constexpr (std::is_same_v<Matrix, Plain>) {
    Eigen::Ref<Plain> x_ref(x), dy_ref(dy);
    check<Norm>(s, axis, x_ref, dy_ref, Eigen::Ref<Plain>(y), Eigen::Ref<Plain>(dx));
    auto block_ref = [&](int i) { return Eigen::Ref<Plain>(larger[i].block(2, 3, rows, cols)); };
    auto x_block_ref = block_ref(0), dy_block_ref = block_ref(1);
    check<Norm>(s, axis, x_block_ref, dy_block_ref, block_ref(2), block_ref(3));
  }
}

template <class Norm>
void check_matrices() {
  using RowArray = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using ColArray = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic>;
  check_matrix_kind<Norm, RowMatrix<float>>(slab({6, 41}, 1, 1), {}, 6, 41);
  check_matrix_kind<Norm, RowMatrix<float>>(slab({41, 6}, 0, 0), 0, 41, 6);
  check_matrix_kind<Norm, ColMatrix<float>>(slab({6, 41}, 1, 1), 0, 41, 6);
  check_matrix_kind<Norm, ColMatrix<float>>(slab({41, 6}, 0, 0), 1, 6, 41);
  check_matrix_kind<Norm, RowArray>(slab({6, 41}, 1, 1), -1, 6, 41);
  check_matrix_kind<Norm, ColArray>(slab({41, 6}, 0, 0), -1, 6, 41);
}

template <class Norm>
void check_vectors() {
  const Slab s = slab({53}, 0, 0);
  Vector<float> x(53), dy(53), y(53), dx(53);
  check<Norm>(s, {}, x, dy, y, dx);
  Eigen::RowVectorXf rx(53), rdy(53), ry(53), rdx(53);
  check<Norm>(s, {}, rx, rdy, ry, rdx);
  using Spread = Eigen::Map<Eigen::VectorXf, 0, Eigen::InnerStride<>>;
  std::vector<std::vector<float>> memory(4, std::vector<float>(53 * 3));
  auto spread = [&](int i) { return Spread(memory[std::size_t(i)].data(), 53, Eigen::InnerStride<>(3)); };
  auto x_spread = spread(0), dy_spread = spread(1);
  check<Norm>(s, {}, x_spread, dy_spread, spread(2), spread(3));
}

}  // namespace

TEMPLATE_TEST_CASE("row norms take matrices, arrays, blocks, maps with strides and refs", "[norms][tensors]",
                   RmsNormUnderTest, LayerNormUnderTest) {
  check_matrices<TestType>();
}

TEMPLATE_TEST_CASE("row norms take vectors without an axis", "[norms][tensors]", RmsNormUnderTest, LayerNormUnderTest) {
  check_vectors<TestType>();
}

TEMPLATE_TEST_CASE("row norms take weights as tensors, maps and rows", "[norms][tensors]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  const Data data = make_data<float>({4, 21, 1}, 9);
  const auto x = matrix_of<RowMatrix<float>>(4, 21, data.x), dy = matrix_of<RowMatrix<float>>(4, 21, data.dy);
  RowMatrix<float> y(4, 21), dx(4, 21);
  Eigen::Tensor<float, 1> weight(21), bias(21);
  fill(weight, data.weight);
  fill(bias, data.bias);
  check_against_reference<TestType>(ek::serial, data, x, dy, y, dx, weight, bias, {.eps = eps}, eps);
  std::vector<float> weights = support::as<float>(data.weight);
  const Eigen::RowVectorXf bias_row = vector_of<float>(data.bias).matrix().transpose();
  check_against_reference<TestType>(ek::serial, data, x, dy, y, dx,
                                    Eigen::Map<const Eigen::VectorXf>(weights.data(), 21), bias_row, {.eps = eps}, eps);
}
