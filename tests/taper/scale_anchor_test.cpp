#include "evenkeel/taper/scale_anchor.hpp"

#include "evenkeel/taper/taper_norm.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/devices.hpp"
#include "support/gradient_check.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace ek = evenkeel;

namespace {

template <class T>
using MatrixOf = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Matrix = MatrixOf<double>;
using Values = std::vector<double>;
constexpr ek::ScaleKind kinds[] = {ek::ScaleKind::rms, ek::ScaleKind::sigma};

template <class T = double>
MatrixOf<T> batch(ek::Index rows, ek::Index width, std::uint64_t seed, double spread = 1) {
  const Values v = support::normal<T>(std::size_t(rows * width), seed, 0.5, spread);
  MatrixOf<T> m(rows, width);
  for (ek::Index i = 0; i < m.size(); ++i) m.data()[i] = T(v[std::size_t(i)]);
  return m;
}

// s of each row, in double.
template <class M>
Eigen::ArrayXd scales(const M& matrix, const ek::ScaleAnchorOptions& o) {
  const Matrix h = matrix.template cast<double>();
  Eigen::ArrayXd s(h.rows());
  for (ek::Index r = 0; r < h.rows(); ++r) {
    const double mean = o.kind == ek::ScaleKind::sigma ? h.row(r).mean() : 0;
    s(r) = std::sqrt((h.row(r).array() - mean).square().mean() + o.eps);
  }
  return s;
}

}  // namespace

TEST_CASE("the scale anchor's loss and gradient equal their formula and central differences", "[taper]") {
  for (const ek::ScaleKind kind : kinds)
    for (const ek::Index width : {3, 9, 40}) {
      const ek::ScaleAnchorOptions options{.lambda = 0.3, .target = 1.7, .kind = kind, .eps = 1e-2};
      const Matrix h = batch(5, width, 1), before = batch(5, width, 2);
      Matrix dh = before;
      ek::ScaleAnchorSaved<double> saved;
      const double loss = ek::scale_anchor_loss(ek::serial, h, dh, saved, options);
      const auto s = scales(h, options);
      CHECK(loss == Approx(0.3 * (s - 1.7).square().mean()).epsilon(1e-13));
      CHECK(ek::scale_mean(ek::serial, h, saved, options) == Approx(s.mean()).epsilon(1e-13));
      CHECK(saved.scale(3) == Approx(s(3)).epsilon(1e-13));
      const Matrix added = dh - before;
      const auto loss_of = [&](const Values& v) {
        const Matrix at = Eigen::Map<const Matrix>(v.data(), 5, width);
        return 0.3 * (scales(at, options) - 1.7).square().mean();
      };
      const Values point(h.data(), h.data() + h.size()), got(added.data(), added.data() + added.size());
      CHECK(support::gradient_distance(got, support::central_differences(loss_of, point)) <
            support::gradient_tolerance);
    }
}

TEST_CASE("the scale anchor is right in float rows of any size, on every device and along any axis", "[taper]") {
  for (const ek::ScaleKind kind : kinds)
    for (const double spread : {1.0, 1e25}) {
      const ek::ScaleAnchorOptions options{.lambda = 1 / spread, .target = spread, .kind = kind, .eps = 0};
      MatrixOf<float> h = batch<float>(7, 40, 1, spread);
      h.row(2) *= 1e-3f;
      const auto s = scales(h, options);
      MatrixOf<float> expected = MatrixOf<float>::Zero(7, 40);
      ek::ScaleAnchorSaved<float> saved;
      const double loss = ek::scale_anchor_loss(ek::serial, h, expected, saved, options);
      CHECK(loss == Approx((s - spread).square().mean() / spread).epsilon(1e-6));
      CHECK(ek::scale_mean(ek::serial, h, saved, options) == Approx(s.mean()).epsilon(1e-6));
      for (ek::Index r = 0; r < 7; ++r) {
        const double mean = kind == ek::ScaleKind::sigma ? double(h.row(r).cast<double>().mean()) : 0;
        for (ek::Index i = 0; i < 40; ++i) {
          const double pull = 2 / spread / (7 * 40) * (1 - spread / s(r));
          CHECK(double(expected(r, i)) == Approx((double(h(r, i)) - mean) * pull).epsilon(1e-5).margin(1e-8));
        }
      }
      MatrixOf<float> dh = MatrixOf<float>::Zero(7, 40);
      CHECK(ek::scale_anchor_loss(support::ThreadPool(3).device(), h, dh, saved, options) == loss);
      CHECK(dh == expected);
      ek::ScaleAnchorOptions turned = options;
      turned.axis = 0;
      MatrixOf<float> columns = MatrixOf<float>::Zero(40, 7);
      const MatrixOf<float> h_columns = h.transpose();
      CHECK(ek::scale_anchor_loss(ek::serial, h_columns, columns, saved, turned) == Approx(loss).epsilon(1e-6));
      CHECK((columns.transpose() - expected).cwiseAbs().maxCoeff() <= 1e-6f * expected.cwiseAbs().maxCoeff());
    }
}

TEST_CASE("the scale anchor is right in double rows whose squares leave its range", "[taper]") {
  for (const ek::ScaleKind kind : kinds)
    for (const double scale : {1e200, 1e-200}) {
      const ek::ScaleAnchorOptions options{.lambda = 1, .target = 1.5, .kind = kind, .eps = 0};
      const Matrix h = batch(3, 9, 1), scaled = h * scale;
      Matrix one = Matrix::Zero(3, 9), dh = one;
      ek::ScaleAnchorSaved<double> saved;
      ek::scale_anchor_loss(ek::serial, h, one, saved, options);
      ek::ScaleAnchorOptions of_scaled = options;
      of_scaled.target *= scale;
      ek::scale_anchor_loss(ek::serial, scaled, dh, saved, of_scaled);
      CHECK((dh / scale - one).cwiseAbs().maxCoeff() < 1e-15);
      CHECK(ek::scale_mean(ek::serial, scaled, saved, of_scaled) ==
            Approx(scale * ek::scale_mean(ek::serial, h, saved, options)).epsilon(1e-14));
    }
}

TEST_CASE("the scale anchor pulls the scale to its target", "[taper]") {
  for (const ek::ScaleKind kind : kinds) {
    const ek::ScaleAnchorOptions options{.lambda = 0.1, .target = 2, .kind = kind};
    Matrix h = batch(8, 16, 3);
    h.topRows(4) *= 5;
    ek::ScaleAnchorSaved<double> saved;
    double last = INFINITY;
    for (int t = 0; t < 200; ++t) {
      Matrix dh = Matrix::Zero(8, 16);
      const double loss = ek::scale_anchor_loss(ek::serial, h, dh, saved, options);
      CHECK(loss <= last);
      last = loss;
      h -= 100 * dh;
    }
    CHECK((scales(h, options) - 2).abs().maxCoeff() < 1e-3);
  }
}

TEST_CASE("a ScaleAnchor averages the scale in the warmup and holds it from then on", "[taper]") {
  const double rate = 0.2;
  ek::Taper taper({.warmup_steps = 4, .end_step = 8}, rate);
  ek::ScaleAnchor<double> anchor(taper, {.lambda = 0.5, .target = 99, .kind = ek::ScaleKind::sigma});
  double sum = 0;
  for (int t = 0; t < 4; ++t, taper.advance()) {
    const Matrix h = batch(5, 9, std::uint64_t(t), 1 + t);
    Matrix dh = Matrix::Ones(5, 9);
    CHECK(anchor.add(ek::serial, h, dh) == 0);
    CHECK((dh.array() == 1).all());
    sum += rate * std::pow(1 - rate, 3 - t) * scales(h, anchor.options()).mean();
    CHECK(anchor.target() == 0);
  }
  const Matrix h = batch(5, 9, 20);
  Matrix dh = Matrix::Zero(5, 9), expected = dh;
  const double loss = anchor.add(ek::serial, h, dh);
  CHECK(anchor.frozen());
  CHECK(anchor.target() == Approx(sum / (1 - std::pow(1 - rate, 4))).epsilon(1e-13));
  ek::ScaleAnchorSaved<double> saved;
  CHECK(loss == ek::scale_anchor_loss(ek::serial, h, expected, saved, anchor.options()));
  CHECK(loss > 0);
  CHECK(dh == expected);
  const double target = anchor.target();
  for (int t = 0; t < 6; ++t, taper.advance()) anchor.add(ek::serial, batch(5, 9, 30, 4), dh);
  CHECK(anchor.target() == target);
}

TEST_CASE("a ScaleAnchor restored in any phase goes on bit for bit", "[taper]") {
  for (const int saved_at : {0, 2, 3, 6}) {
    ek::Taper taper({.warmup_steps = 3, .end_step = 5});
    ek::ScaleAnchor<float> anchor(taper), again(taper);
    for (int t = 0; t < 8; ++t, taper.advance()) {
      if (t == saved_at) again.restore(anchor.state());
      const MatrixOf<float> h = batch<float>(5, 9, std::uint64_t(t));
      MatrixOf<float> dh = MatrixOf<float>::Zero(5, 9), again_dh = dh;
      const double loss = anchor.add(ek::serial, h, dh);
      if (t < saved_at) continue;
      CHECK(again.add(ek::serial, h, again_dh) == loss);
      CHECK(again_dh == dh);
    }
  }
}

TEST_CASE("the scale anchor names what does not fit", "[taper][errors]") {
  Matrix h = batch(3, 4, 1), dh(3, 4), narrow(3, 3);
  ek::ScaleAnchorSaved<double> saved;
  CHECK_THROWS_WITH(ek::scale_anchor_loss(ek::serial, h, h, saved),
                    "scale_anchor_loss: dh is h, expected memory apart from it");
  CHECK_THROWS_WITH(ek::scale_anchor_loss(ek::serial, h, narrow, saved),
                    "scale_anchor_loss: dh is 3x3, h is 3x4, axis 1");
  CHECK_THROWS_WITH(ek::scale_anchor_loss(ek::serial, h, dh, saved, {.lambda = -1}),
                    "scale_anchor_loss: lambda is -1.000000, expected a finite number of at least 0");
  CHECK_THROWS_WITH(ek::scale_anchor_loss(ek::serial, h, dh, saved, {.target = NAN}),
                    "scale_anchor_loss: target is nan, expected a finite number of at least 0");
  ek::Taper taper({.warmup_steps = 0, .end_step = 1});
  CHECK_THROWS_AS(ek::ScaleAnchor<double>(taper, {.lambda = INFINITY}), ek::ShapeError);
  ek::ScaleAnchor<double> anchor(taper);
  CHECK_THROWS_WITH(anchor.add(ek::serial, h, dh),
                    "ScaleAnchor::freeze: got no batches in the warmup, expected 1 or more, or freeze(target)");
  CHECK_THROWS_WITH(anchor.freeze(-1),
                    "ScaleAnchor::freeze: got the target -1.000000, expected a finite number of at "
                    "least 0");
  anchor.freeze(2);
  CHECK_THROWS_WITH(anchor.freeze(),
                    "ScaleAnchor::freeze: got an anchor whose target is 2.000000 already, expected one "
                    "that is not frozen yet");
  CHECK_THROWS_WITH(anchor.restore({.scale = {}, .target = 3, .frozen = false}),
                    "ScaleAnchor::restore: got target 3.000000, frozen 0, expected a finite target of at least 0, 0 "
                    "where not frozen");
  CHECK_THROWS_AS(anchor.restore({.scale = {.sum = 1, .weight = 3, .count = 1}}), ek::StateError);
  CHECK(anchor.target() == 2);
}

// Cross-entropy of a linear head without bias behind a final TaperNorm, and what it pulls at the length of h.
TEST_CASE("a final norm takes the radial gradient away; without it there is logit chasing; the anchor restores",
          "[taper]") {
  const ek::Index tokens = 6, width = 12, words = 5;
  const double eps = 1e-2;
  const Matrix h = batch(tokens, width, 1), head = batch(words, width, 2);
  const Eigen::ArrayXd weight = batch(width, 1, 3).col(0).array(), scale = batch(width, 1, 4).col(0).array();
  for (const double gate : {1.0, 0.0}) {
    Matrix y(tokens, width), dh(tokens, width), dy(tokens, width);
    ek::TaperRmsNormSaved<double> saved;
    ek::taper_rms_norm(ek::serial, h, weight, scale, ek::none, y, saved, {.gate = gate, .factor = 0.8, .eps = eps});
    const Matrix logits = y * head.transpose();
    Eigen::ArrayXd margin(tokens), miss(tokens);
    for (ek::Index t = 0; t < tokens; ++t) {
      ek::Index target = 0;
      const Eigen::ArrayXd z = logits.row(t).transpose().array();
      const double top = z.maxCoeff(&target);  // the right word leads: the margin is positive
      Eigen::ArrayXd p = (z - top).exp();
      p /= p.sum();
      Eigen::ArrayXd rest = z;
      rest(target) = -INFINITY;
      margin(t) = top - rest.maxCoeff();
      miss(t) = 1 - p(target);
      p(target) -= 1;
      dy.row(t) = p.matrix().transpose() * head;
    }
    Eigen::ArrayXd dw(width), dc(width);
    ek::taper_rms_norm_backward(ek::serial, dy, h, weight, scale, saved, dh, dw, dc, ek::none,
                                ek::GradientMode::overwrite);
    const Eigen::ArrayXd radial = (dh.array() * h.array()).rowwise().sum();
    for (ek::Index t = 0; t < tokens; ++t) {
      INFO("gate " << gate << ", token " << t);
      if (gate == 1) {
        const double rstd = saved.rstd(t);
        const double left =
            eps * rstd * rstd * rstd * (dy.row(t).array() * weight.transpose() * h.row(t).array()).sum();
        CHECK(radial(t) == Approx(left).epsilon(1e-10).margin(1e-14));
      } else {
        CHECK(radial(t) <= -miss(t) * margin(t) * (1 - 1e-12));
        CHECK(radial(t) < 0);
      }
    }
    // The anchor adds 2 lambda (s - target) (s^2 - eps)/s per token, times 1/tokens.
    const ek::ScaleAnchorOptions options{.lambda = 0.1, .target = 0.5, .eps = eps};
    ek::ScaleAnchorSaved<double> scratch;
    ek::scale_anchor_loss(ek::serial, h, dh, scratch, options);
    const Eigen::ArrayXd s = scales(h, options);
    const Eigen::ArrayXd added = (dh.array() * h.array()).rowwise().sum() - radial;
    const Eigen::ArrayXd restoring = 0.2 * (s - 0.5) * (s.square() - eps) / s / double(tokens);
    CHECK((added - restoring).abs().maxCoeff() < 1e-13);
    CHECK((restoring > 0).all());
  }
  // As eps goes to 0 nothing radial is left behind a norm.
  Matrix y(tokens, width), dh(tokens, width);
  ek::TaperRmsNormSaved<double> saved;
  ek::taper_rms_norm(ek::serial, h, weight, scale, ek::none, y, saved, {.eps = 0});
  ek::taper_rms_norm_backward(ek::serial, y, h, weight, scale, saved, dh, ek::none, ek::none, ek::none);
  CHECK((dh.array() * h.array()).rowwise().sum().abs().maxCoeff() < 1e-13);
}
