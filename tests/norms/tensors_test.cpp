// Tensors of every rank, layout and axis against the reference over the same memory.
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

template <class Norm, class Tensor, class... Extents>
void check_tensor(const Slab& s, ek::Axes axis, Extents... extents) {
  Tensor x(extents...), dy(extents...), y(extents...), dx(extents...);
  check<Norm>(s, axis, x, dy, y, dx);
}

template <class Norm>
void check_row_major_tensors() {
  using T1 = Eigen::Tensor<float, 1, Eigen::RowMajor>;
  using T2 = Eigen::Tensor<float, 2, Eigen::RowMajor>;
  using T3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;
  using T4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  check_tensor<Norm, T1>(slab({37}, 0, 0), {}, 37);
  check_tensor<Norm, T2>(slab({5, 37}, 1, 1), {}, 5, 37);
  check_tensor<Norm, T2>(slab({37, 5}, 0, 0), 0, 37, 5);
  check_tensor<Norm, T2>(slab({37, 5}, 0, 0), -2, 37, 5);
  check_tensor<Norm, T3>(slab({3, 4, 19}, 2, 2), {}, 3, 4, 19);
  check_tensor<Norm, T3>(slab({3, 19, 4}, 1, 1), 1, 3, 19, 4);
  check_tensor<Norm, T3>(slab({3, 18, 40}, 1, 1), -2, 3, 18, 40);
  check_tensor<Norm, T3>(slab({19, 3, 4}, 0, 0), -3, 19, 3, 4);
  check_tensor<Norm, T3>(slab({3, 4, 19}, 1, 2), {1, 2}, 3, 4, 19);
  check_tensor<Norm, T3>(slab({3, 4, 19}, 1, 2), {-2, -1}, 3, 4, 19);
  check_tensor<Norm, T3>(slab({3, 7, 5}, 0, 1), {0, 1}, 3, 7, 5);
  check_tensor<Norm, T4>(slab({2, 3, 5, 17}, 3, 3), {}, 2, 3, 5, 17);
  check_tensor<Norm, T4>(slab({2, 3, 17, 5}, 2, 2), 2, 2, 3, 17, 5);
  check_tensor<Norm, T4>(slab({2, 9, 3, 5}, 1, 1), -3, 2, 9, 3, 5);
  check_tensor<Norm, T4>(slab({2, 3, 5, 7}, 1, 2), {1, 2}, 2, 3, 5, 7);
}

// Extents are listed in Eigen's order; the slab takes them from the slowest in memory, which is the last one here.
template <class Norm>
void check_col_major_tensors() {
  using T1 = Eigen::Tensor<float, 1>;
  using T2 = Eigen::Tensor<float, 2>;
  using T3 = Eigen::Tensor<float, 3>;
  using T4 = Eigen::Tensor<float, 4>;
  check_tensor<Norm, T1>(slab({37}, 0, 0), {}, 37);
  check_tensor<Norm, T2>(slab({5, 37}, 1, 1), 0, 37, 5);
  check_tensor<Norm, T2>(slab({37, 5}, 0, 0), 1, 5, 37);
  check_tensor<Norm, T2>(slab({37, 5}, 0, 0), -1, 5, 37);
  check_tensor<Norm, T3>(slab({3, 4, 19}, 2, 2), 0, 19, 4, 3);
  check_tensor<Norm, T3>(slab({3, 19, 4}, 1, 1), 1, 4, 19, 3);
  check_tensor<Norm, T3>(slab({19, 3, 4}, 0, 0), -1, 4, 3, 19);
  check_tensor<Norm, T4>(slab({2, 3, 17, 5}, 2, 2), 1, 5, 17, 3, 2);
}

template <class Norm>
void check_tensor_maps() {
  using T3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;
  std::vector<float> x(3 * 4 * 19), dy(x.size()), y(x.size()), dx(x.size());
  const auto map = [](std::vector<float>& v) { return Eigen::TensorMap<T3>(v.data(), 3, 4, 19); };
  auto xm = map(x), dym = map(dy);
  check<Norm>(slab({3, 4, 19}, 2, 2), {}, xm, dym, map(y), map(dx));
  check<Norm>(slab({3, 4, 19}, 1, 1), 1, xm, dym, map(y), map(dx));
}

}  // namespace

TEMPLATE_TEST_CASE("row norms take RowMajor tensors of any rank and axis", "[norms][tensors]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  check_row_major_tensors<TestType>();
}

TEMPLATE_TEST_CASE("row norms take ColMajor tensors of any rank and axis", "[norms][tensors]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  check_col_major_tensors<TestType>();
}

TEMPLATE_TEST_CASE("row norms take tensor maps and write through temporaries", "[norms][tensors]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  check_tensor_maps<TestType>();
}
