#include "norms/masked_norm_checks.hpp"
#include "support/devices.hpp"

using namespace norms_test;

namespace {

template <class Norm>
void check_devices() {
  for (const std::size_t length : Counts{5, 64, 77})
    for (const Padding padding : {Padding::right, Padding::rows}) {
      const Slab s{257, length, 1};
      const Data data = make_data<float>(s, length);
      const Values set = mask_of(s, padding);
      const auto x = matrix<float>(data, poisoned(data.x, set)), dy = matrix<float>(data, poisoned(data.dy, set));
      const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
      const RowsMask rows = bools(s, set).col(0);
      const auto on = [&](const auto& mask) {
        RowMatrix<float> y = x, dx = x;
        Vector<float> dweight = Vector<float>::Zero(ek::Index(length)), dbias = dweight;
        typename Norm::template Saved<float> saved;
        Norm::forward(ek::serial, x, mask, weight, bias, y, saved, {});
        for (int step = 0; step < 2; ++step)
          Norm::backward(ek::serial, dy, x, mask, weight, saved, dx, dweight, dbias);  // accumulates
        support::for_each_device([&](const auto& device) {
          RowMatrix<float> a = x, got = dy;
          Vector<float> dw = Vector<float>::Zero(ek::Index(length)), db = dw;
          typename Norm::template Saved<float> of_device;
          Norm::forward(device, a, mask, weight, bias, a, of_device, {});
          CHECK((a.array() == y.array()).all());
          CHECK_THROWS_AS(Norm::backward(device, dy, a, mask, weight, of_device, got, dw, db), ek::ShapeError);
          Norm::forward(device, x, mask, weight, bias, a, of_device, {});
          CHECK((a.array() == y.array()).all());
          for (int step = 0; step < 2; ++step) {
            got = dy;
            Norm::backward(device, got, x, mask, weight, of_device, got, dw, db);
          }
          CHECK((got.array() == dx.array()).all());
          CHECK((dw == dweight).all());
          CHECK((db == dbias).all());
        });
      };
      if (padding == Padding::rows)
        on(rows);
      else
        on(bools(s, set));
    }
}

template <class Norm>
void check_all_ones() {
  for (const std::size_t length : Counts{3, 40, 77}) {
    const Data data = make_data<float>({19, length, 1}, length, 3, 0.5);
    const auto x = matrix<float>(data, data.x), dy = matrix<float>(data, data.dy);
    const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
    const auto run = [&](const auto& mask) {
      RowMatrix<float> y(19, length), dx(19, length), plain_y(19, length), plain_dx(19, length);
      Vector<float> dweight = Vector<float>::Zero(ek::Index(length)), dbias = dweight, plain_dweight = dweight;
      typename Norm::template Saved<float> saved;
      Norm::forward(ek::serial, x, mask, weight, bias, y, saved, {.eps = 1e-3});
      Norm::backward(ek::serial, dy, x, mask, weight, saved, dx, dweight, ek::none);
      typename Norm::Unmasked::template Saved<float> plain;
      const auto unmasked = [&](const auto& b) {
        Norm::Unmasked::forward(ek::serial, x, weight, b, plain_y, plain, {.eps = 1e-3});
      };
      if constexpr (Norm::centred)
        unmasked(bias);
      else
        unmasked(ek::none);
      Norm::Unmasked::backward(ek::serial, dy, x, weight, plain, plain_dx, plain_dweight, ek::none);
      const double near = support::tolerance(length, 10, epsilon_of<float>());
      CHECK(double((y - plain_y).cwiseAbs().maxCoeff()) < near);
      CHECK(double((dx - plain_dx).cwiseAbs().maxCoeff()) < near);
      CHECK(double((dweight - plain_dweight).abs().maxCoeff()) < 19 * near);
      for (ek::Index r = 0; r < 19; ++r) CHECK(double(saved.rstd(r)) == Approx(double(plain.rstd(r))).epsilon(1e-6));
    };
    run(Mask(Mask::Constant(19, ek::Index(length), true)));
    run(RowsMask(RowsMask::Constant(19, true)));
  }
}

}  // namespace

TEST_CASE("masked norms give the same bits on every device and in place", "[norms][masked_norm][devices]") {
  check_devices<MaskedLayerNorm>();
  check_devices<MaskedRmsNorm>();
}

TEST_CASE("a mask that is set everywhere changes nothing", "[norms][masked_norm]") {
  check_all_ones<MaskedLayerNorm>();
  check_all_ones<MaskedRmsNorm>();
}
