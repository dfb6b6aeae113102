// Masked norms in every layout that layer_norm takes, with masks of several scalars.
#include "norms/masked_norm_checks.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <cstdint>

using namespace norms_test;

namespace {

using Cube = Eigen::Tensor<float, 3, Eigen::RowMajor>;
using Position = Eigen::Tensor<std::int64_t, 2, Eigen::RowMajor>;

// One value of `set`, which is the same along a row, for each row.
template <class M>
M per_row(M mask, const Slab& s, const Values& set) {
  for (std::size_t r = 0; r < s.rows(); ++r) mask.data()[r] = typename M::Scalar(set[s.at(r, 0)]);
  return mask;
}

template <class Norm, class X, class M>
void check(const Slab& s, const X& x, M mask, Padding padding, const ek::Axes& axis) {
  const Data data = make_data<float>(s, s.size());
  const Values set = mask_of(s, padding);
  if (std::size_t(mask.size()) == s.size())
    fill(mask, set);
  else
    mask = per_row(mask, s, set);
  check_masked<Norm>(data, x, mask, set, vector_of<float>(data.weight), vector_of<float>(data.bias), {.axis = axis},
                     epsilon_of<float>());
}

template <class Norm>
void check_layouts() {
  for (const Padding padding : paddings) {
    check<Norm>({1, 19, 35}, RowMatrix<float>(19, 35), RowMatrix<float>(19, 35), padding, 0);
    check<Norm>({35, 19, 1}, ColMatrix<float>(19, 35), ColMatrix<float>(19, 35), padding, 0);
    check<Norm>({3, 19, 4}, Cube(3, 19, 4), Cube(3, 19, 4), padding, 1);
    check<Norm>({3, 76, 1}, Cube(3, 19, 4), Cube(3, 19, 4), padding, {1, 2});
  }
  // One value for each row.
  const auto rows = Padding::rows;
  check<Norm>({1, 19, 35}, RowMatrix<float>(19, 35), Vector<Eigen::half>(35), rows, 0);
  check<Norm>({1, 19, 35}, RowMatrix<float>(19, 35), Mask(1, 35), rows, 0);
  check<Norm>({35, 19, 1}, RowMatrix<float>(35, 19), Mask(35, 1), rows, 1);
  check<Norm>({35, 19, 1}, ColMatrix<float>(19, 35), RowsMask(35), rows, 0);
  check<Norm>({3, 19, 4}, Cube(3, 19, 4), Position(3, 4), rows, 1);
  check<Norm>({57, 4, 1}, Cube(3, 19, 4), Position(3, 19), rows, 2);
  check<Norm>({57, 4, 1}, Cube(3, 19, 4), Cube(3, 19, 1), rows, {2});
  check<Norm>({57, 34, 1}, Cube(3, 19, 34), Position(3, 19), rows, 2);
  check<Norm>({3, 76, 1}, Cube(3, 19, 4), RowsMask(3), rows, {1, 2});
  check<Norm>({3, 76, 1}, Cube(3, 19, 4), Cube(3, 1, 1), rows, {1, 2});
}

// Heads of a wider buffer, with a mask for each element, and one for each head.
template <class Norm>
void check_views(ek::Index features) {
  const ek::Index rows = 6, heads = 3, pitch = heads * features + 5;
  const Slab s{std::size_t(rows * heads), std::size_t(features), 1};
  const Data data = make_data<float>(s, s.size());
  const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
  const auto wide = [&](const Values& values) {
    Vector<float> memory = Vector<float>::Constant(rows * pitch, 55);
    for (ek::Index r = 0; r < rows; ++r)
      for (ek::Index k = 0; k < heads * features; ++k)
        memory(r * pitch + k) = float(values[std::size_t(r * heads * features + k)]);
    return memory;
  };
  for (const Padding padding : paddings) {
    const Values set = mask_of(s, padding);
    const CutOut expected =
        cut_out<Norm>(data, set, data.weight, Norm::centred ? data.bias : Values{}, {1e-5, false, {}});
    Vector<float> x = wide(poisoned(data.x, set)), dy = wide(poisoned(data.dy, set)), mask = wide(set), y = wide(set),
                  dx = y;
    Vector<float> head_mask(rows * heads);
    for (ek::Index r = 0; r < rows * heads; ++r) head_mask(r) = float(set[std::size_t(r * features)]);
    const auto view = [&](Vector<float>& memory) {
      return ek::heads_view(memory.data(), rows, pitch, heads, features);
    };
    const auto run = [&](const auto& mask_view) {
      Vector<float> dweight = Vector<float>::Zero(features), dbias = dweight;
      typename Norm::template Saved<float> saved;
      Norm::forward(ek::serial, view(x), mask_view, weight, bias, view(y), saved, {.eps = 1e-5});
      Norm::backward(ek::serial, view(dy), view(x), mask_view, weight, saved, view(dx), dweight, dbias);
      const auto narrow = [&](const Vector<float>& memory) {
        Values values;
        for (ek::Index r = 0; r < rows; ++r)
          for (ek::Index k = 0; k < pitch; ++k) {
            if (k < heads * features) values.push_back(double(memory(r * pitch + k)));
            if (k >= heads * features) CHECK(memory(r * pitch + k) == 55);
          }
        return values;
      };
      const auto& [f, b] = expected;
      CHECK(worst_error(narrow(y), f.y, f.y_magnitude, s.length, epsilon_of<float>()) <= 1);
      CHECK(worst_error(narrow(dx), b.dx, b.dx_magnitude, s.length, epsilon_of<float>()) <= 1);
      CHECK(worst_error(values_of(dweight), b.dweight, b.dweight_magnitude, s.size(), epsilon_of<float>()) <= 1);
    };
    run(view(mask));
    if (padding == Padding::rows) run(ek::heads_view(head_mask.data(), rows, heads, heads, 1));
  }
}

}  // namespace

TEST_CASE("masked norms work along any axis of either storage order", "[norms][masked_norm]") {
  check_layouts<MaskedLayerNorm>();
  check_layouts<MaskedRmsNorm>();
}

TEST_CASE("masked norms of views", "[norms][masked_norm]") {
  for (const ek::Index features : {5, 32}) {
    check_views<MaskedLayerNorm>(features);
    check_views<MaskedRmsNorm>(features);
  }
}

TEST_CASE("a mask of another storage order", "[norms][masked_norm][errors]") {
  const Cube x(3, 19, 4);
  Cube y(3, 19, 4);
  // Rows counted as one axis of x cannot be those of a column-major mask.
  CHECK_THROWS_WITH(
      ek::masked_rms_norm(ek::serial, x, ColMatrix<float>(3, 19), ek::none, y, ek::none, {.axis = 2}),
      support::contains_text("masked_rms_norm: mask (3x19) has gaps or another storage order than x (x is 3x19x4, axis "
                             "2)"));
}
