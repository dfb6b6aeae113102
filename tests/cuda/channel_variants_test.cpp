// Masks, residuals and hard data on a device.
#include "cuda/channel_checks.hpp"

using namespace cuda_test;

TEST_CASE("masked channel norms on a device equal the reference", "[cuda][batch_norm]") {
  using T = float;
  for (Order order : {Order::first, Order::last, Order::scattered})
    for (const auto& [C, S] : {std::pair<std::size_t, std::size_t>{8, 16}, {5, 7}, {64, 40}, {3, slow ? 11 : 3000}}) {
      Channels p = channels<T>(4, C, S);
      add_mask(p);
      check<T, float, ek::Identity, false, true>(p, {.order = order});
      p.ghost = 1;
      check<T, float, ek::Identity, false, true>(p, {.order = order, .norm = Norm::instance});
      p.groups = C % 2 == 0 ? 2 : 1;
      check<T, float, ek::Identity, false, true>(p, {.order = order, .norm = Norm::group});
    }
}

TEST_CASE("a device's cells in which nothing or one value counts have finite results", "[cuda][batch_norm]") {
  for (Order order : {Order::first, Order::last})
    for (const double count : {0.0, 1.0}) {
      Channels p = channels<float>(2, 4, 9);
      p.mask.assign(p.N * p.S, 0);
      p.mask[5] = count;
      const Outputs got = run_on_device<float, float, ek::Identity, false, true>(p, {.order = order});
      for (std::size_t c = 0; c < p.C; ++c) {
        CHECK(got.moments[c] == count);
        CHECK(got.moments[3 * p.C + c] == 0);
        CHECK(got.dweight[c] == 0);
        CHECK(got.statistics[2 * p.C + c] == Approx(1 / std::sqrt(p.eps)));
        for (std::size_t n = 0; n < p.N; ++n)
          for (std::size_t s = 0; s < p.S; ++s) {
            const bool counts = p.mask[n * p.S + s] > 0;
            CHECK(got.y[p.at(n, c, s)] == (counts ? double(float(p.bias[c])) : 0.0));
            CHECK(got.dx[p.at(n, c, s)] == 0);
          }
      }
    }
}

TEST_CASE("batch_norm_add with ReLU on a device equals the reference", "[cuda][batch_norm]") {
  using T = Eigen::bfloat16;
  for (Order order : {Order::first, Order::last})
    for (const auto& [C, S] : {std::pair<std::size_t, std::size_t>{8, 16}, {5, 7}, {40, 49}}) {
      Channels p = channels<T>(3, C, S);
      p.residual = support::normal<T>(p.size(), 9);
      check<T, float, ek::Relu, true>(p, {.order = order});
      check<T, float, ek::Relu, true>(p, {.order = order, .dy_in_place = true});
      check<T, float, ek::Relu, true>(p, {.order = order, .residual_in_place = true});
    }
}

TEST_CASE("hard data on a device", "[cuda][batch_norm][hard]") {
  using T = float;
  for (Order order : {Order::first, Order::last}) {
    const std::size_t S = slow ? 200 : 5000;
    Channels p = channels<T>(3, 6, S, 5, 1e4, 1e-2);
    p.eps = 1e-12;
    check<T, T>(p, {.order = order});
    // The first elements lie far out: the shift that they make is a bad one, and the rest must not lose digits by it.
    for (const std::size_t outliers : Counts{1, 5}) {
      Channels far = channels<T>(3, 6, S, 7, 10, 1);
      for (std::size_t c = 0; c < far.C; c += 2)
        for (std::size_t s = 0; s < outliers; ++s) far.x[far.at(0, c, s)] = 3e3;
      check<T, T>(far, {.order = order});
    }
    // So does padding, which is not seen.
    Channels padded = channels<T>(3, 6, S, 8, 1e4, 1e-2);
    padded.eps = 1e-12;
    padded.mask.assign(padded.N * S, 1);
    for (std::size_t s = 0; s < S / 2; ++s) {
      padded.mask[s] = 0;
      for (std::size_t c = 0; c < padded.C; ++c) padded.x[padded.at(0, c, s)] = -7;
    }
    check<T, T, ek::Identity, false, true>(padded, {.order = order});
  }
}
