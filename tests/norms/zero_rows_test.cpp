// No rows: nothing is written, gradients that are overwritten become 0, and nothing is taken for an in-place call.
#include "evenkeel/norms/batch_norm.hpp"
#include "evenkeel/norms/derf.hpp"
#include "evenkeel/norms/dyt.hpp"
#include "evenkeel/norms/gated_rms_norm.hpp"
#include "evenkeel/norms/l2_norm.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/partial_rms_norm.hpp"
#include "support/catch.hpp"

#include <Eigen/Core>

#include <cmath>

namespace ek = evenkeel;

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr auto overwrite = ek::GradientMode::overwrite;

}  // namespace

TEST_CASE("backward over no rows", "[norms]") {
  const Matrix x(0, 20), gate(0, 20), dy(0, 20);
  Matrix y(0, 20), dx(0, 20), dgate(0, 20);
  const Eigen::ArrayXf weight = Eigen::ArrayXf::Ones(20);
  const float one = 1;
  Eigen::ArrayXf dweight, dbias;
  const auto check = [&](const auto& run) {
    dweight = dbias = Eigen::ArrayXf::Constant(20, NAN);
    CHECK_NOTHROW(run());
    CHECK((dweight == 0).all());
  };
  check([&] {
    ek::LayerNormSaved<float> saved;
    ek::layer_norm(ek::serial, x, weight, weight, y, saved);
    ek::layer_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias, overwrite);
  });
  check([&] {
    ek::L2NormSaved<float> saved;
    ek::l2_norm(ek::serial, x, weight, y, saved);
    ek::l2_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight, overwrite);
  });
  check([&] {
    ek::DytSaved<float> saved;
    float dalpha = NAN;
    ek::dyt(ek::serial, x, &one, weight, weight, y, saved);
    ek::dyt_backward(ek::serial, dy, x, &one, weight, saved, dx, &dalpha, dweight, dbias, overwrite);
    CHECK(dalpha == 0);
  });
  check([&] {
    ek::GatedRmsNormSaved<float> saved;
    ek::gated_rms_norm(ek::serial, x, gate, weight, y, saved);
    ek::gated_rms_norm_backward(ek::serial, dy, x, gate, weight, saved, dx, dgate, dweight, overwrite);
  });
  check([&] {
    ek::PartialRmsNormSaved<float> saved;
    ek::partial_rms_norm(ek::serial, x, weight, ek::none, y, saved, {.features_used = 5});
    ek::partial_rms_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight, ek::none, overwrite);
  });
}

TEST_CASE("batch norm over no rows, with eps = 0: there is no value to look at", "[norms]") {
  const Eigen::Map<const Matrix> x(nullptr, 0, 20);
  Eigen::Map<Matrix> y(nullptr, 0, 20);
  const Eigen::ArrayXf weight = Eigen::ArrayXf::Ones(20);
  Eigen::ArrayXf dweight = Eigen::ArrayXf::Constant(20, NAN), dbias = dweight;
  ek::BatchNormSaved<float> saved;
  ek::batch_norm(ek::serial, x, weight, weight, y, saved, {.eps = 0});
  ek::batch_norm_backward(ek::serial, x, x, weight, saved, y, dweight, dbias, overwrite);
  CHECK((dweight == 0).all());
  CHECK((dbias == 0).all());
}
