#include "norms/masked_norm_checks.hpp"

using namespace norms_test;

namespace {

template <class Norm, class T>
void check_small() {
  const bool half = std::is_same_v<T, Eigen::half>;
  const double epsilon = (half ? 0x1p-10 : 0x1p-7) / 12, least = half ? 0x1p-14 : 0x1p-126;
  for (const Padding padding : paddings)
    for (const std::size_t length : Counts{7, 33}) {
      const Slab s{9, length, 1};
      const Data data = make_data<T>(s, length);
      const Values set = mask_of(s, padding);
      const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
      check_masked<Norm>(data, RowMatrix<T>(9, length), bools(s, set), set, weight, bias, {}, epsilon, least);
      // Rounded before the weight: what the norm rounds with a weight of 1, times the weight.
      const auto x = matrix<T>(data, data.x);
      const Vector<float> ones = Vector<float>::Ones(ek::Index(length)), zeros = 0 * ones;
      RowMatrix<T> y = x, plain = x;
      Norm::forward(ek::serial, x, bools(s, set), ones, zeros, plain, ek::none, {});
      Norm::forward(ek::serial, x, bools(s, set), weight, zeros, y, ek::none,
                    {.rounding = ek::Rounding::round_normalized});
      for (ek::Index r = 0; r < 9; ++r)
        for (ek::Index i = 0; i < ek::Index(length); ++i) CHECK(y(r, i) == T(float(plain(r, i)) * weight(i)));
    }
}

}  // namespace

TEMPLATE_TEST_CASE("masked norms of small scalars with float weights", "[norms][masked_norm]", Eigen::half,
                   Eigen::bfloat16) {
  check_small<MaskedLayerNorm, TestType>();
  check_small<MaskedRmsNorm, TestType>();
}
