// The row operations beyond LayerNorm and RMSNorm: a row's results must not depend on its place in the batch.
#include "norms_bits/bits.hpp"

using namespace bits_test;

namespace {

struct L2 {
  static constexpr const char* name = "l2_norm";
  template <class T>
  static Results<T> run(const Matrix<T>& x, const Matrix<T>& dy, const Vector<T>& weight, const Vector<T>&) {
    Results<T> r{x, x, x};
    ek::L2NormSaved<T> saved;
    ek::l2_norm(ek::serial, x, weight, r.y, saved);
    ek::l2_norm_backward(ek::serial, dy, x, weight, saved, r.dx, ek::none);
    return r;
  }
};

struct DynamicTanh {
  static constexpr const char* name = "dyt";
  template <class T>
  static Results<T> run(const Matrix<T>& x, const Matrix<T>& dy, const Vector<T>& weight, const Vector<T>& bias) {
    Results<T> r{x, x, x};
    const T alpha = T(0.7);
    ek::DytSaved<T> saved;
    ek::dyt(ek::serial, x, &alpha, weight, bias, r.y, saved);
    ek::dyt_backward(ek::serial, dy, x, &alpha, weight, saved, r.dx, ek::none, ek::none, ek::none);
    return r;
  }
};

struct DynamicErf {
  static constexpr const char* name = "derf";
  template <class T>
  static Results<T> run(const Matrix<T>& x, const Matrix<T>& dy, const Vector<T>& weight, const Vector<T>& bias) {
    Results<T> r{x, x, x};
    const T alpha = T(0.7), shift = T(0.3);
    ek::DerfSaved<T> saved;
    ek::derf(ek::serial, x, &alpha, &shift, weight, bias, r.y, saved);
    ek::derf_backward(ek::serial, dy, x, &alpha, &shift, weight, saved, r.dx, ek::none, ek::none, ek::none, ek::none);
    return r;
  }
};

// The gate is x in another order of columns: a function of the row alone.
template <ek::GateOrder Order>
struct Gated {
  static constexpr const char* name = "gated_rms_norm";
  template <class T>
  static Results<T> run(const Matrix<T>& x, const Matrix<T>& dy, const Vector<T>& weight, const Vector<T>&) {
    Results<T> r{x, x, x};
    const Matrix<T> gate = x.rowwise().reverse();
    ek::GatedRmsNormSaved<T> saved;
    ek::gated_rms_norm(ek::serial, x, gate, weight, r.y, saved, {.order = Order});
    ek::gated_rms_norm_backward(ek::serial, dy, x, gate, weight, saved, r.dx, r.sum, ek::none);
    return r;
  }
};

struct Partial {
  static constexpr const char* name = "partial_rms_norm";
  template <class T>
  static Results<T> run(const Matrix<T>& x, const Matrix<T>& dy, const Vector<T>& weight, const Vector<T>& bias) {
    Results<T> r{x, x, x};
    ek::PartialRmsNormSaved<T> saved;
    ek::partial_rms_norm(ek::serial, x, weight, bias, r.y, saved, {.fraction = 0.5});
    ek::partial_rms_norm_backward(ek::serial, dy, x, weight, saved, r.dx, ek::none, ek::none);
    return r;
  }
};

template <class Norm, class T>
void check_places(std::size_t features) {
  const auto length = ek::Index(features);
  const Matrix<T> x = random_matrix<T>(13, length, features), dy = random_matrix<T>(13, length, 2 * features);
  const Vector<T> weight = random_matrix<T>(length, 1, 3).array(), bias = random_matrix<T>(length, 1, 4).array();
  const Results<T> batch = Norm::run(x, dy, weight, bias);
  int changed = 0;
  for (ek::Index row = 0; row < 13; ++row) {
    const Results<T> alone = Norm::run(Matrix<T>(x.row(row)), Matrix<T>(dy.row(row)), weight, bias);
    changed += !same_row(batch, row, alone, 0);
    // At the head, in the middle and at the end of a smaller batch.
    for (ek::Index place : {0, 2, 4}) {
      Matrix<T> other_x = x.topRows(5), other_dy = dy.topRows(5);
      other_x.row(place) = x.row(row);
      other_dy.row(place) = dy.row(row);
      changed += !same_row(Norm::run(other_x, other_dy, weight, bias), place, alone, 0);
    }
  }
  INFO(Norm::name << " of " << features << " features, scalar of " << sizeof(T) << " bytes");
  CHECK(changed == 0);
}

}  // namespace

// The sum of Results stays the input where an operation has no third output.
TEMPLATE_TEST_CASE("a row of l2_norm, dyt, ... has the same bits wherever it stands", "[norms][bits]", L2, DynamicTanh,
                   DynamicErf, Gated<ek::GateOrder::norm_then_gate>, Gated<ek::GateOrder::gate_then_norm>, Partial) {
  for (std::size_t length : lengths) {
    check_places<TestType, float>(length);
    check_places<TestType, double>(length);
  }
}
