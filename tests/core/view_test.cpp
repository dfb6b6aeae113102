#include "evenkeel/view.hpp"

#include "support/catch.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <string>
#include <vector>

namespace ek = evenkeel;
using ek::AxisView;
using ek::Index;

namespace {

template <class X>
auto view(X& x, const ek::Axes& axes) {
  return ek::detail::view_along("f", "x", x, ek::detail::resolve_axes("f", "x", ek::detail::layout_of(x), axes));
}

/// The elements in the order rows, then along the axis.
template <class T>
std::vector<int> elements(const AxisView<T>& v) {
  std::vector<int> result;
  for (Index o = 0; o < v.outer[0]; ++o)
    for (Index p = 0; p < v.outer[1]; ++p)
      for (Index k = 0; k < v.inner; ++k)
        for (Index i = 0; i < v.length; ++i)
          result.push_back(static_cast<int>(
              v.data[o * v.outer_stride[0] + p * v.outer_stride[1] + i * v.stride + k * v.inner_stride]));
  return result;
}

template <class X>
std::string message(X& x, const ek::Axes& axes) {
  try {
    view(x, axes);
  } catch (const ek::ShapeError& error) {
    return error.what();
  }
  return "no error";
}

template <int Layout>
Eigen::Tensor<float, 3, Layout> numbered_tensor() {
  Eigen::Tensor<float, 3, Layout> x(2, 3, 4);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) x(i, j, k) = static_cast<float>(100 * i + 10 * j + k);
  return x;
}

/// What a view along one axis must give: rows over the other axes, the element index fastest.
std::vector<int> expected_along(int axis) {
  const int extent[] = {2, 3, 4}, weight[] = {100, 10, 1};
  const int a = axis == 0 ? 1 : 0, b = axis == 2 ? 1 : 2;
  std::vector<int> result;
  for (int i = 0; i < extent[a]; ++i)
    for (int j = 0; j < extent[b]; ++j)
      for (int k = 0; k < extent[axis]; ++k) result.push_back(i * weight[a] + j * weight[b] + k * weight[axis]);
  return result;
}

}  // namespace

TEST_CASE("view: every axis of a row-major tensor, counted from both ends") {
  auto x = numbered_tensor<Eigen::RowMajor>();
  for (int axis = 0; axis < 3; ++axis) {
    CHECK(elements(view(x, axis)) == expected_along(axis));
    CHECK(elements(view(x, axis - 3)) == expected_along(axis));
  }
  CHECK(elements(view(x, {})) == expected_along(2));
  const auto& constant = x;
  static_assert(std::is_same_v<decltype(view(constant, 1)), AxisView<const float>>);
  Eigen::TensorMap<Eigen::Tensor<float, 3, Eigen::RowMajor>> map(x.data(), 2, 3, 4);
  CHECK(elements(view(map, 1)) == expected_along(1));
}

TEST_CASE("view: column-major tensors merge their outer axes in their own order") {
  auto x = numbered_tensor<Eigen::ColMajor>();
  CHECK(elements(view(x, 0)).front() == 0);
  const auto v = view(x, 2);
  CHECK(v.rows() == 6);
  CHECK(v.stride == 6);
  CHECK(elements(v)[1] == 1);
  CHECK(elements(v)[4] == 100);  // the second row is the next in memory
  CHECK(elements(view(x, 1)) == expected_along(1));
}

TEST_CASE("view: neighbouring axes count as one") {
  auto x = numbered_tensor<Eigen::RowMajor>();
  const auto v = view(x, {1, 2});
  CHECK(v.length == 12);
  CHECK(v.stride == 1);
  CHECK(v.rows() == 2);
  CHECK(view(x, {0, 1}).inner == 4);
  CHECK(view(x, {0, 1, 2}).length == 24);
  CHECK(view(x, {-2, -1}).length == 12);
}

TEST_CASE("view: matrices, maps with strides, blocks, refs and vectors") {
  using M = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  M m(3, 4);
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 4; ++j) m(i, j) = static_cast<float>(10 * i + j);
  const std::vector<int> rows{0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23};
  const std::vector<int> columns{0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23};
  CHECK(elements(view(m, {})) == rows);
  CHECK(elements(view(m, 0)) == columns);
  Eigen::MatrixXf c = m;
  CHECK(elements(view(c, 1)) == rows);
  CHECK(elements(view(c, 0)) == columns);

  std::vector<float> memory(200, -1);
  Eigen::Map<M, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> strided(memory.data(), 3, 4, {40, 3});
  strided = m;
  CHECK(elements(view(strided, -1)) == rows);
  CHECK(view(strided, -1).stride == 3);
  Eigen::Ref<M, 0, Eigen::OuterStride<>> ref(m);
  CHECK(elements(view(ref, 1)) == rows);
  auto block = m.block(1, 1, 2, 2);
  CHECK(elements(view(block, 1)) == std::vector<int>{11, 12, 21, 22});

  Eigen::VectorXf vector = Eigen::VectorXf::LinSpaced(5, 0, 4);
  CHECK(elements(view(vector, {})) == std::vector<int>{0, 1, 2, 3, 4});
  auto row = c.row(1);
  CHECK(elements(view(row, {})) == std::vector<int>{10, 11, 12, 13});
}

TEST_CASE("view: axes of extent 1 do not separate their neighbours") {
  Eigen::Tensor<float, 4, Eigen::RowMajor> x(2, 1, 3, 4);
  CHECK(view(x, 3).outer[1] == 6);
  CHECK(view(x, 1).length == 1);
  CHECK(view(x, {1, 2}).length == 3);
}

TEST_CASE("view: wrong axes say what they are") {
  auto x = numbered_tensor<Eigen::RowMajor>();
  CHECK(message(x, 3) == "f: axis 3 is out of range, x has 3 axes (x is 2x3x4)");
  CHECK(message(x, -4) == "f: axis -4 is out of range, x has 3 axes (x is 2x3x4)");
  CHECK(message(x, {0, 2}) == "f: axis 2 does not follow axis 0, expected neighbouring axes in ascending order");
  CHECK(message(x, {2, 1}) == "f: axis 1 does not follow axis 2, expected neighbouring axes in ascending order");
  CHECK(message(x, {0, 1, 2, 3}) == "f: 4 axes are named, x has 3 (x is 2x3x4)");
  auto c = numbered_tensor<Eigen::ColMajor>();
  CHECK(message(c, {}) ==
        "f: x is column-major 2x3x4: its last axis (2) is not its contiguous one (0); name the axis to choose between "
        "them");
  Eigen::MatrixXf m(4, 6);
  CHECK_THAT(message(m, {}), support::contains_text("name the axis"));
  std::vector<float> memory(200);
  Eigen::Map<Eigen::MatrixXf, 0, Eigen::OuterStride<>> strided(memory.data(), 4, 6, Eigen::OuterStride<>(10));
  CHECK_THAT(message(strided, {0, 1}), support::contains_text("has gaps between the axes 0 to 1"));
}
