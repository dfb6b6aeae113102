// TaperNorm between and at its ends, where it has loops of its own: a row's results must not depend on its place.
#include "norms_bits/bits.hpp"

using namespace bits_test;

namespace {

template <bool Centred>
struct Taper {
  static Results<float> run(const Matrix<float>& x, const Matrix<float>& dy, const Vector<float>& weight,
                            const Vector<float>& bias, double gate) {
    Results<float> r{x, x, x};
    Vector<float> dweight = weight;
    if constexpr (Centred) {
      ek::TaperLayerNormSaved<float> saved;
      ek::taper_layer_norm(ek::serial, x, weight, bias, bias, r.y, saved, {.gate = gate, .factor = 0.7});
      ek::taper_layer_norm_backward(ek::serial, dy, x, weight, bias, saved, r.dx, dweight, dweight, dweight);
    } else {
      ek::TaperRmsNormSaved<float> saved;
      ek::taper_rms_norm(ek::serial, x, weight, bias, ek::none, r.y, saved, {.gate = gate, .factor = 0.7});
      ek::taper_rms_norm_backward(ek::serial, dy, x, weight, bias, saved, r.dx, dweight, dweight, ek::none);
    }
    return r;
  }
};

template <bool Centred>
void check_places(std::size_t features, double gate) {
  const auto length = ek::Index(features);
  const Matrix<float> x = random_matrix<float>(13, length, features),
                      dy = random_matrix<float>(13, length, 2 * features);
  const Vector<float> weight = random_matrix<float>(length, 1, 3).array();
  const Vector<float> bias = random_matrix<float>(length, 1, 4).array();
  const auto batch = Taper<Centred>::run(x, dy, weight, bias, gate);
  int changed = 0;
  for (ek::Index row = 0; row < 13; ++row)
    for (const ek::Index rows : {1, 3}) {
      Matrix<float> other_x = x.topRows(rows), other_dy = dy.topRows(rows);
      other_x.row(rows / 2) = x.row(row);
      other_dy.row(rows / 2) = dy.row(row);
      changed += !same_row(Taper<Centred>::run(other_x, other_dy, weight, bias, gate), rows / 2, batch, row);
    }
  INFO((Centred ? "taper_layer_norm of " : "taper_rms_norm of ") << features << " features at gate " << gate);
  CHECK(changed == 0);
}

}  // namespace

TEST_CASE("TaperNorm's rows have the same bits wherever they stand in the batch", "[norms][bits]") {
  for (const double gate : {0.0, 0.3, 1.0})
    for (const std::size_t length : lengths) {
      check_places<false>(length, gate);
      check_places<true>(length, gate);
    }
}

TEST_CASE("TaperNorm at gate 1 has the bits of the plain norm, calibrating or not", "[norms][bits]") {
  for (const std::size_t features : lengths) {
    const auto length = ek::Index(features);
    const Matrix<float> x = random_matrix<float>(13, length, features);
    const Vector<float> weight = random_matrix<float>(length, 1, 3).array(),
                        bias = random_matrix<float>(length, 1, 4).array();
    Matrix<float> plain(13, length), y(13, length);
    ek::TaperRmsNormSaved<float> rms_saved;
    ek::TaperLayerNormSaved<float> layer_saved;
    for (const bool calibrate : {false, true}) {
      INFO(features << " features, calibrate " << calibrate);
      ek::RmsNormSaved<float> plain_rms;
      ek::rms_norm(ek::serial, x, weight, plain, plain_rms, {.eps = 1e-6});
      ek::taper_rms_norm(ek::serial, x, weight, bias, ek::none, y, rms_saved, {.eps = 1e-6, .calibrate = calibrate});
      CHECK((y.array() == plain.array()).all());
      for (ek::Index r = 0; r < 13; ++r) CHECK(rms_saved.rstd(r) == plain_rms.rstd(r));
      ek::LayerNormSaved<float> plain_layer;
      ek::layer_norm(ek::serial, x, weight, bias, plain, plain_layer);
      ek::taper_layer_norm(ek::serial, x, weight, bias, bias, y, layer_saved, {.calibrate = calibrate});
      CHECK((y.array() == plain.array()).all());
      for (ek::Index r = 0; r < 13; ++r) CHECK(layer_saved.rstd(r) == plain_layer.rstd(r));
    }
  }
}
