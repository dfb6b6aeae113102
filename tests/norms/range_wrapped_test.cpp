// gated, partial and masked norms near the ends of the range.
#include "norms/gated_rms_norm_checks.hpp"
#include "norms/masked_norm_checks.hpp"
#include "norms/range_checks.hpp"

using namespace norms_test;

namespace {

template <ek::GateOrder Order>
struct Gated {
  static constexpr const char* name = "gated_rms_norm";

  template <class Matrix, class W>
  static Ran<Matrix> run(const Matrix& x, const Matrix& dy, const Matrix& gate, const W& weight) {
    Ran<Matrix> ran(x);
    ek::GatedRmsNormSaved<typename Matrix::Scalar> saved;
    ek::gated_rms_norm(ek::serial, x, gate, weight, ran.y, saved, {.eps = 0, .axis = 1, .order = Order});
    ek::gated_rms_norm_backward(ek::serial, dy, x, gate, weight, saved, ran.dx, ran.dgate, ran.dweight);
    return ran;
  }
  template <class Matrix, class W>
  static void in_place(Matrix& x, const Matrix& gate, const W& weight) {
    ek::gated_rms_norm(ek::serial, x, gate, weight, x, ek::none, {.eps = 0, .axis = 1, .order = Order});
  }
};

struct Partial {
  static constexpr const char* name = "partial_rms_norm";

  static ek::PartialRmsNormOptions options(Eigen::Index length) {
    return {.eps = 0, .axis = 1, .features_used = (length + 2) / 3};
  }
  template <class Matrix, class W>
  static Ran<Matrix> run(const Matrix& x, const Matrix& dy, const Matrix&, const W& weight) {
    Ran<Matrix> ran(x);
    ek::PartialRmsNormSaved<typename Matrix::Scalar> saved;
    ek::partial_rms_norm(ek::serial, x, weight, ek::none, ran.y, saved, options(x.cols()));
    ek::partial_rms_norm_backward(ek::serial, dy, x, weight, saved, ran.dx, ran.dweight, ek::none);
    return ran;
  }
  template <class Matrix, class W>
  static void in_place(Matrix& x, const Matrix&, const W& weight) {
    ek::PartialRmsNormSaved<typename Matrix::Scalar> saved;
    ek::partial_rms_norm(ek::serial, x, weight, ek::none, x, saved, options(x.cols()));
  }
};

// Every third element is padding, and infinite.
template <class Norm>
struct Masked {
  static constexpr const char* name = Norm::name;

  template <class Matrix>
  static Matrix padded(Matrix m) {
    for (Eigen::Index i = 1; i < m.cols(); i += 3)
      m.col(i).setConstant(std::numeric_limits<typename Matrix::Scalar>::infinity());
    return m;
  }
  template <class Matrix, class W>
  static Ran<Matrix> run(const Matrix& x, const Matrix& dy, const Matrix&, const W& weight) {
    Ran<Matrix> ran(x);
    const Mask mask = padded(x).array().isFinite();
    typename Norm::template Saved<typename Matrix::Scalar> saved;
    Norm::forward(ek::serial, padded(x), mask, weight, ek::none, ran.y, saved, {.eps = 0, .axis = 1});
    Norm::backward(ek::serial, padded(dy), padded(x), mask, weight, saved, ran.dx, ran.dweight, ek::none);
    return ran;
  }
};

}  // namespace

TEST_CASE("rows near the ends of the range, masked norms", "[norms][masked_norm]") {
  check_ranges<Masked<MaskedLayerNorm>>();
  check_ranges<Masked<MaskedRmsNorm>>();
}
TEST_CASE("rows near the ends of the range, gated_rms_norm", "[norms][gated_rms_norm]") {
  check_ranges<Gated<ek::GateOrder::norm_then_gate>>();
  check_ranges<Gated<ek::GateOrder::gate_then_norm>>();
}
TEST_CASE("rows near the ends of the range, partial_rms_norm", "[norms][partial_rms_norm]") { check_ranges<Partial>(); }

// In double the same numbers are nowhere near the end. The inverse of each root mean square is a float, as saved needs.
TEST_CASE("products of x and a gate that leave the range of float", "[norms][gated_rms_norm]") {
  const auto run = [](const auto& x, const auto& dy, const auto& gate, ek::GateOrder order) {
    const Vector<typename std::remove_cvref_t<decltype(x)>::Scalar> weight = x.row(0).array().transpose() * 0 + 2;
    return order == ek::GateOrder::gate_then_norm ? Gated<ek::GateOrder::gate_then_norm>::run(x, dy, gate, weight)
                                                  : Gated<ek::GateOrder::norm_then_gate>::run(x, dy, gate, weight);
  };
  for (const auto order : gate_orders)
    for (const std::size_t length : Counts{5, 37})
      for (const auto& [exponent, shut] :
           {std::pair{15, -95.0}, {-40, -55.0}, {100, -80.0}, {124, 60.0}, {-60, -30.0}, {118, -81.0}}) {
        INFO("x of 2^" << exponent << ", gates of " << shut << ", rows of " << length << ", order " << int(order));
        const Data data = make_data<float>({3, length, 1}, length);
        const auto x = matrix_of<RowMatrix<double>>(3, length, data.x),
                   dy = matrix_of<RowMatrix<double>>(3, length, data.dy);
        const RowMatrix<double> gate = (dy.array() + shut).matrix().cast<float>().cast<double>();
        const RowMatrix<double> scaled = x * std::exp2(exponent);
        const RowMatrix<double> large = dy * 0x1p20;
        const auto exact = run(scaled, large, gate, order);
        const auto got = run(RowMatrix<float>(scaled.cast<float>()), RowMatrix<float>(large.cast<float>()),
                             RowMatrix<float>(gate.cast<float>()), order);
        const auto near = [](const RowMatrix<float>& a, const RowMatrix<double>& b) {
          for (Eigen::Index r = 0; r < b.rows(); ++r) {
            const double reach = b.row(r).cwiseAbs().maxCoeff();
            if (reach < 0x1p-100 || reach > 0x1p127) continue;  // shut, or no float has digits for it
            CHECK(double((a.row(r).cast<double>() - b.row(r)).cwiseAbs().maxCoeff()) <= 1e-4 * reach);
          }
        };
        near(got.y, exact.y);
        near(got.dx, exact.dx);
        near(got.dgate, exact.dgate);
      }
}

// Neither do the features that do not count decide how a row is scaled.
TEST_CASE("partial_rms_norm of rows whose parts are far from each other", "[norms][partial_rms_norm]") {
  const std::size_t length = 37, used = 13;
  const Data data = make_data<double>({3, length, 1}, 7);
  const auto x = matrix_of<RowMatrix<double>>(3, length, data.x), dy = matrix_of<RowMatrix<double>>(3, length, data.dy);
  const Vector<double> weight = vector_of<double>(data.weight);
  RowMatrix<double> far = x;
  far.leftCols(used) *= 0x1p-700;
  far.rightCols(length - used) *= 0x1p300;
  const auto plain = Partial::run(x, dy, x, weight), got = Partial::run(far, dy, far, weight);
  CHECK((got.y.leftCols(used) - plain.y.leftCols(used)).cwiseAbs().maxCoeff() < 1e-12);
  CHECK((got.y.rightCols(length - used) * 0x1p-1000 - plain.y.rightCols(length - used)).cwiseAbs().maxCoeff() < 1e-12);
}
