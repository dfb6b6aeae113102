// What norms over channels must agree on with each other and with LayerNorm, and their gradients against central
// differences.
#include "norms/channel_checks.hpp"
#include "support/gradient_check.hpp"

using namespace norms_test;

namespace {

using Layout = ChannelsFirst<double>;
using Tensor = Layout::Tensor;

Values flat(Tensor t) { return Values(t.data(), t.data() + t.size()); }

struct Outputs {
  Tensor y, dx;
  Vector<double> dweight, dbias;
};
template <class Forward, class Backward>
Outputs run(const Channels& p, const Forward& forward, const Backward& backward) {
  const Tensor x = tensor_of<Layout>(p, p.x), dy = tensor_of<Layout>(p, p.dy);
  Outputs out{tensor_of<Layout>(p, {}), tensor_of<Layout>(p, {}), Vector<double>::Zero(Eigen::Index(p.C)),
              Vector<double>::Zero(Eigen::Index(p.C))};
  const auto w = vector_of<double>(p.weight), b = vector_of<double>(p.bias);
  ek::ChannelNormSaved<double> saved;
  forward(x, w, b, out.y, saved);
  backward(dy, x, w, saved, out.dx, out.dweight, out.dbias);
  return out;
}
Outputs group_norm(const Channels& p, ek::Index groups) {
  return run(
      p,
      [&](const auto& x, const auto& w, const auto& b, auto& y, auto& saved) {
        ek::group_norm(ek::serial, x, w, b, y, saved, {.groups = groups});
      },
      [](const auto& dy, const auto& x, const auto& w, auto& saved, auto& dx, auto& dw, auto& db) {
        ek::group_norm_backward(ek::serial, dy, x, w, saved, dx, dw, db);
      });
}

double distance(const Values& a, const Values& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

}  // namespace

TEST_CASE("GroupNorm with one group is LayerNorm over channels and space", "[norms][group_norm]") {
  const Channels p = channels<double>(3, 6, 11, 7);
  const Outputs group = group_norm(p, 1);
  const Tensor x = tensor_of<Layout>(p, p.x), dy = tensor_of<Layout>(p, p.dy);
  Tensor y = x, dx = x;
  Vector<double> weight(66), bias(66), dweight = Vector<double>::Zero(66), dbias = dweight;
  for (int c = 0; c < 6; ++c) {
    weight.segment(11 * c, 11).setConstant(p.weight[std::size_t(c)]);
    bias.segment(11 * c, 11).setConstant(p.bias[std::size_t(c)]);
  }
  ek::LayerNormSaved<double> saved;
  ek::layer_norm(ek::serial, x, weight, bias, y, saved, {.axis = {1, 2}});
  ek::layer_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias);
  CHECK(distance(flat(group.y), flat(y)) <= 1e-13);
  CHECK(distance(flat(group.dx), flat(dx)) <= 1e-13);
  for (int c = 0; c < 6; ++c) {
    CHECK(group.dweight[c] == Approx(dweight.segment(11 * c, 11).sum()));
    CHECK(group.dbias[c] == Approx(dbias.segment(11 * c, 11).sum()));
  }
}

TEST_CASE("GroupNorm with as many groups as channels is InstanceNorm, bit for bit",
          "[norms][group_norm][instance_norm]") {
  const Channels p = channels<double>(3, 6, 11, 9);
  const Outputs group = group_norm(p, 6);
  const Outputs instance = run(
      p,
      [](const auto& x, const auto& w, const auto& b, auto& y, auto& saved) {
        ek::instance_norm(ek::serial, x, w, b, y, saved);
      },
      [](const auto& dy, const auto& x, const auto& w, auto& saved, auto& dx, auto& dw, auto& db) {
        ek::instance_norm_backward(ek::serial, dy, x, w, ek::none, saved, dx, dw, db);
      });
  CHECK(flat(group.y) == flat(instance.y));
  CHECK(flat(group.dx) == flat(instance.dx));
  CHECK((group.dweight == instance.dweight).all());
}

TEST_CASE("BatchNorm of N x C is BatchNorm of N x C x 1 x 1, bit for bit", "[norms][batch_norm]") {
  const Channels p = channels<float>(37, 45, 1, 11);
  const auto x = matrix_of<RowMatrix<float>>(37, 45, p.x), dy = matrix_of<RowMatrix<float>>(37, 45, p.dy);
  const auto w = vector_of<float>(p.weight), b = vector_of<float>(p.bias);
  RowMatrix<float> y(37, 45), dx(37, 45);
  using Rank4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  const Rank4 x4 = Eigen::TensorMap<const Rank4>(x.data(), 37, 45, 1, 1);
  const Rank4 dy4 = Eigen::TensorMap<const Rank4>(dy.data(), 37, 45, 1, 1);
  Rank4 y4(37, 45, 1, 1), dx4(37, 45, 1, 1);
  Vector<float> dw = Vector<float>::Zero(45), db = dw, dw4 = dw, db4 = dw;
  ek::BatchNormSaved<float> saved, saved4;
  ek::batch_norm(ek::serial, x, w, b, y, saved);
  ek::batch_norm(ek::serial, x4, w, b, y4, saved4);
  ek::batch_norm_backward(ek::serial, dy, x, w, saved, dx, dw, db);
  ek::batch_norm_backward(ek::serial, dy4, x4, w, saved4, dx4, dw4, db4);
  CHECK(std::equal(y.data(), y.data() + y.size(), y4.data()));
  CHECK(std::equal(dx.data(), dx.data() + dx.size(), dx4.data()));
  CHECK((dw == dw4).all());
}

TEST_CASE("shift and scale of the input do not matter to norms over channels", "[norms][batch_norm][group_norm]") {
  const Channels p = channels<double>(4, 6, 9, 19);
  Channels moved = p;
  for (double& v : moved.x) v = 4 * v + 12;
  const Outputs a = group_norm(p, 3), b = group_norm(moved, 3);
  // The same eps stands beside a variance that is 16 times as large.
  CHECK(distance(flat(a.y), flat(b.y)) <= 1e-4);
  const Channels shifted = [&] {
    Channels s = p;
    for (double& v : s.x) v += 12;
    return s;
  }();
  CHECK(distance(flat(a.y), flat(group_norm(shifted, 3).y)) <= 1e-13);
}

TEST_CASE("gradients of GroupNorm and masked BatchNorm against central differences",
          "[norms][group_norm][batch_norm]") {
  const Channels p = channels<double>(2, 4, 5, 23);
  const auto w = vector_of<double>(p.weight), b = vector_of<double>(p.bias);
  Eigen::Tensor<bool, 2, Eigen::RowMajor> mask(2, 5);
  for (Eigen::Index i = 0; i < mask.size(); ++i) mask.data()[i] = i % 4 != 1;
  const Tensor dy = tensor_of<Layout>(p, p.dy), x = tensor_of<Layout>(p, p.x);
  const auto check = [&](const auto& forward, const auto& backward) {
    const auto loss = [&](const Values& at, const Values& weight) {
      ek::ChannelNormSaved<double> saved;
      Tensor y = x;
      forward(tensor_of<Layout>(p, at), vector_of<double>(weight), y, saved);
      return support::weighted_sum(flat(y), p.dy);
    };
    ek::ChannelNormSaved<double> saved;
    Tensor y = x, dx = x;
    Vector<double> dw = Vector<double>::Zero(4), db = dw;
    forward(x, w, y, saved);
    backward(saved, dx, dw, db);
    using support::central_differences, support::gradient_distance, support::gradient_tolerance;
    CHECK(gradient_distance(flat(dx), central_differences([&](const Values& v) { return loss(v, p.weight); }, p.x)) <
          gradient_tolerance);
    CHECK(gradient_distance(values_of(dw), central_differences([&](const Values& v) { return loss(p.x, v); },
                                                               p.weight)) < gradient_tolerance);
  };
  check([&](const Tensor& at, const auto& weight, Tensor& y,
            auto& saved) { ek::group_norm<ek::Silu>(ek::serial, at, weight, b, y, saved, {.groups = 2}); },
        [&](auto& saved, Tensor& dx, auto& dw, auto& db) {
          ek::group_norm_backward<ek::Silu>(ek::serial, dy, x, w, b, saved, dx, dw, db);
        });
  check([&](const Tensor& at, const auto& weight, Tensor& y,
            auto& saved) { ek::masked_batch_norm(ek::serial, at, mask, weight, b, y, saved); },
        [&](auto& saved, Tensor& dx, auto& dw, auto& db) {
          ek::masked_batch_norm_backward(ek::serial, dy, x, mask, w, b, saved, dx, dw, db);
        });
}
