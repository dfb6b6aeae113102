// The norms that call layer_norm's, rms_norm's and l2_norm's maths, near the ends of the range.
#include "norms/range_checks.hpp"

using namespace norms_test;

namespace {

// The residual is half of x, and a gradient flows into the sum that is in proportion to the one through the norm.
template <bool Centred>
struct Add {
  static constexpr const char* name = Centred ? "add_layer_norm" : "add_rms_norm";

  template <class Matrix, class W>
  static Ran<Matrix> run(const Matrix& x, const Matrix& dy, const Matrix&, const W& weight) {
    using T = typename Matrix::Scalar;
    Ran<Matrix> ran(x);
    const Matrix residual = T(0.5) * x;
    Matrix sum = x, dsum = dy;
    for (Eigen::Index r = 0; r < x.rows(); ++r)
      dsum.row(r) *= std::exp2(T(-std::ilogb(x.row(r).cwiseAbs().maxCoeff())));
    if constexpr (Centred) {
      ek::LayerNormSaved<T> saved;
      ek::add_layer_norm(ek::serial, x, residual, weight, ek::none, sum, ran.y, saved, {.eps = 0, .axis = 1});
      ek::add_layer_norm_backward(ek::serial, dy, dsum, sum, weight, saved, ran.dx, ran.dweight, ek::none);
    } else {
      ek::RmsNormSaved<T> saved;
      ek::add_rms_norm(ek::serial, x, residual, weight, sum, ran.y, saved, {.eps = 0, .axis = 1});
      ek::add_rms_norm_backward(ek::serial, dy, dsum, sum, weight, saved, ran.dx, ran.dweight);
    }
    return ran;
  }
};

template <bool Centred>
struct Adaptive {
  static constexpr const char* name = Centred ? "adaptive_layer_norm" : "adaptive_rms_norm";

  template <class Matrix, class W>
  static Ran<Matrix> run(const Matrix& x, const Matrix& dy, const Matrix&, const W& weight) {
    using T = typename Matrix::Scalar;
    Ran<Matrix> ran(x);
    if constexpr (Centred) {
      ek::AdaptiveLayerNormSaved<T> saved;
      ek::adaptive_layer_norm(ek::serial, x, weight, ek::none, ran.y, saved, {.eps = 0, .axis = 1});
      ek::adaptive_layer_norm_backward(ek::serial, dy, x, weight, saved, ran.dx, ran.dweight, ek::none);
    } else {
      ek::AdaptiveRmsNormSaved<T> saved;
      ek::adaptive_rms_norm(ek::serial, x, weight, ek::none, ran.y, saved, {.eps = 0, .axis = 1});
      ek::adaptive_rms_norm_backward(ek::serial, dy, x, weight, saved, ran.dx, ran.dweight, ek::none);
    }
    return ran;
  }
};

// x as queries and keys, one head a row.
template <class Layer>
Ran<RowMatrix<float>> run_heads(Layer& layer, const RowMatrix<float>& x, const RowMatrix<float>& dy) {
  Ran<RowMatrix<float>> ran(x);
  const auto heads = [](auto& m) { return ek::heads_view(m.data(), m.rows(), m.cols(), 1, m.cols()); };
  RowMatrix<float> k_out = x, dk = x;
  layer.forward(ek::serial, heads(x), heads(x), heads(ran.y), heads(k_out));
  layer.backward(ek::serial, heads(dy), heads(dy), heads(x), heads(x), heads(ran.dx), heads(dk));
  CHECK((dk.array().isFinite() && k_out.array().isFinite()).all());
  return ran;
}
template <class Norm>
struct Heads {
  static constexpr const char* name = "QkNorm";

  template <class W>
  static Ran<RowMatrix<float>> run(const RowMatrix<float>& x, const RowMatrix<float>& dy, const RowMatrix<float>&,
                                   const W&) {
    ek::QkNorm<float, Norm> layer(ek::QkNormMode::per_head, {.features = x.cols()}, {.eps = 0});
    return run_heads(layer, x, dy);
  }
};
struct L2Heads {
  static constexpr const char* name = "QkL2Norm";

  template <class W>
  static Ran<RowMatrix<float>> run(const RowMatrix<float>& x, const RowMatrix<float>& dy, const RowMatrix<float>&,
                                   const W&) {
    ek::QkL2Norm<float> layer({.features = x.cols()}, 3, {.eps = 0});
    return run_heads(layer, x, dy);
  }
};

}  // namespace

TEST_CASE("rows near the ends of the range, residual sums", "[norms][rms_norm][layer_norm]") {
  check_ranges<Add<false>>();
  check_ranges<Add<true>>();
}
TEST_CASE("rows near the ends of the range, adaptive norms", "[norms][adaptive_layer_norm]") {
  check_ranges<Adaptive<false>>();
  check_ranges<Adaptive<true>>();
}

TEST_CASE("rows near the ends of the range, heads", "[norms][qk_norm]") {
  for (const std::size_t length : Counts{5, 64})
    for (const double scale : {0x1p66, 0x1p-70, 0x1p123, 0x1p-100}) {
      check_scaled_rows<Heads<ek::RmsNorm<float>>, RowMatrix<float>>(length, scale);
      check_scaled_rows<Heads<ek::LayerNorm<float>>, RowMatrix<float>>(length, scale);
      check_scaled_rows<L2Heads, RowMatrix<float>>(length, scale);
    }
}
