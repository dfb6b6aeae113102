// Every norm over channels, in every layout, with and without mask, against the reference.
#include "norms/channel_checks.hpp"

using namespace norms_test;

namespace {

constexpr auto overwrite = ek::GradientMode::overwrite;

template <class Layout, class T>
void check_batch_norm(Channels p, std::size_t ghost) {
  const ek::BatchNormOptions options{
      .axis = Layout::axis, .ghost = ghost == p.N ? 0 : ek::Index(ghost), .sample_axis = Layout::sample_axis};
  p.ghost = ghost, p.groups = p.C;
  check_channels<Layout, T>(
      p,
      [&](const auto& x, const auto&, const auto&, const auto& w, const auto& b, auto& y, auto& saved) {
        ek::batch_norm(ek::serial, x, w, b, y, saved, options);
      },
      [&](const auto& dy, const auto& x, const auto&, const auto&, const auto& w, const auto&, auto& saved, auto& dx,
          auto&, auto& dw, auto& db) { ek::batch_norm_backward(ek::serial, dy, x, w, saved, dx, dw, db, overwrite); });
  add_mask<T>(p);
  check_channels<Layout, T>(
      p,
      [&](const auto& x, const auto&, const auto& mask, const auto& w, const auto& b, auto& y, auto& saved) {
        ek::masked_batch_norm(ek::serial, x, mask, w, b, y, saved, options);
      },
      [&](const auto& dy, const auto& x, const auto&, const auto& mask, const auto& w, const auto& b, auto& saved,
          auto& dx, auto&, auto& dw,
          auto& db) { ek::masked_batch_norm_backward(ek::serial, dy, x, mask, w, b, saved, dx, dw, db, overwrite); });
}

template <class Layout, class T>
void check_group_norm(Channels p, std::size_t groups) {
  const ek::GroupNormOptions options{
      .groups = ek::Index(groups), .axis = Layout::axis, .sample_axis = Layout::sample_axis};
  p.groups = groups;
  check_channels<Layout, T>(
      p,
      [&](const auto& x, const auto&, const auto&, const auto& w, const auto& b, auto& y, auto& saved) {
        ek::group_norm(ek::serial, x, w, b, y, saved, options);
      },
      [&](const auto& dy, const auto& x, const auto&, const auto&, const auto& w, const auto&, auto& saved, auto& dx,
          auto&, auto& dw, auto& db) { ek::group_norm_backward(ek::serial, dy, x, w, saved, dx, dw, db, overwrite); });
  if (p.S < 4) return;  // the mask would leave groups of one value
  add_mask<T>(p);
  check_channels<Layout, T>(
      p,
      [&](const auto& x, const auto&, const auto& mask, const auto& w, const auto& b, auto& y, auto& saved) {
        ek::masked_group_norm(ek::serial, x, mask, w, b, y, saved, options);
      },
      [&](const auto& dy, const auto& x, const auto&, const auto& mask, const auto& w, const auto& b, auto& saved,
          auto& dx, auto&, auto& dw,
          auto& db) { ek::masked_group_norm_backward(ek::serial, dy, x, mask, w, b, saved, dx, dw, db, overwrite); });
}

template <class Layout, class T>
void check_layout() {
  struct Shape {
    std::size_t N, C, S;
  };
  for (const Shape s : {Shape{4, 6, 5}, Shape{2, 12, 49}, Shape{6, 33, 16}, Shape{2, 128, 7}, Shape{2, 3, 1031},
                        Shape{2, 70, 2}, Shape{3, 120, 1}, Shape{2, 150, 515}}) {
    const Channels p = channels<T>(s.N, s.C, s.S, s.N + 7 * s.C + s.S);
    check_batch_norm<Layout, T>(p, s.N);
    if (s.S > 2) check_batch_norm<Layout, T>(p, s.N / 2);
    for (const std::size_t groups : {std::size_t(1), s.C % 3 ? s.C / 2 : s.C / 3, s.C})
      if (s.S * s.C > groups) check_group_norm<Layout, T>(p, groups);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("norms over channels, N,C,space", "[norms][batch_norm][group_norm]", SUPPORT_WIDE_SCALARS) {
  check_layout<ChannelsFirst<TestType>, TestType>();
}
TEMPLATE_TEST_CASE("norms over channels, N,space,C", "[norms][batch_norm][group_norm]", SUPPORT_WIDE_SCALARS) {
  check_layout<ChannelsLast<TestType>, TestType>();
}
TEST_CASE("norms over channels, column-major", "[norms][batch_norm][group_norm]") {
  check_layout<ColumnMajor<float>, float>();
  check_layout<SamplesFastest<float>, float>();
}

// Blocks of packs of channels, one after the other and side by side.
TEST_CASE("channels near the ends of the range leave those beside them alone", "[norms][batch_norm]") {
  for (const ek::Index rows : {6, 1100}) {
    INFO("rows " << rows);
    const std::size_t channels = 150;
    const Data data = make_data<float>({std::size_t(rows), channels, 1}, 5);
    const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
    const auto dy = matrix_of<RowMatrix<float>>(std::size_t(rows), channels, data.dy);
    RowMatrix<float> usual = matrix_of<RowMatrix<float>>(std::size_t(rows), channels, data.x);
    usual.col(3).setConstant(-1.9f);
    usual(0, 3) = 1.9f;
    RowMatrix<float> x = usual;
    x.col(3) *= 0x1p127f;  // the distance of the first from the mean leaves the range
    x.col(70) *= 0x1p-110f;
    struct Results {
      RowMatrix<float> y, dx;
      Vector<float> dweight;
    };
    const auto run = [&](const RowMatrix<float>& from) {
      Results r{from, from, Vector<float>(ek::Index(channels))};
      ek::BatchNormSaved<float> saved;
      ek::batch_norm(ek::serial, from, weight, bias, r.y, saved, {.eps = 0});
      ek::batch_norm_backward(ek::serial, dy, from, weight, saved, r.dx, r.dweight, ek::none, overwrite);
      return r;
    };
    const Results expected = run(usual), got = run(x);
    for (ek::Index c = 0; c < ek::Index(channels); ++c) {
      INFO("channel " << c);
      if (c == 3 || c == 70) {  // with eps = 0 the scale of a channel does not show
        const float largest = expected.y.col(c).cwiseAbs().maxCoeff();
        CHECK((got.y.col(c) - expected.y.col(c)).cwiseAbs().maxCoeff() <= 4e-6f * largest);
        CHECK(std::abs(got.dweight[c] - expected.dweight[c]) <= 4e-6f * float(rows) * largest);
      } else {
        CHECK((got.y.col(c).array() == expected.y.col(c).array()).all());
        CHECK((got.dx.col(c).array() == expected.dx.col(c).array()).all());
        CHECK(got.dweight[c] == expected.dweight[c]);
      }
    }
  }
}
