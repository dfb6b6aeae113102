#include "cases/weight_run.hpp"
#include "golden/expect.hpp"
#include "support/weight_reference.hpp"

#include <utility>

using namespace golden;
using cases_test::Order, cases_test::SpectralCase, cases_test::SpectralResult, cases_test::WeightCase,
    cases_test::WeightResult, cases_test::WeightStandardizationKind, cases_test::run_weights_everywhere;
using reference::Slab, reference::Weighed;

namespace {

Slab slab_of(const Case& c, std::size_t axis) {
  return reference::slab(std::vector<std::size_t>(c.shape.begin(), c.shape.end()), axis, axis);
}

template <class T>
void expect_weighed(const char* name, const Values& got, const Values& torch, const Weighed& exact, std::size_t summed,
                    double roundings = 2) {
  expect<T>(name, got, torch, exact.value, exact.magnitude, summed, roundings);
}

void check_weight_norm(const Case& c) {
  for_each_result(c, [&]<class T, class P>(Type<T>, Type<P>, const Named& results) {
    WeightCase weight{c.shape, rounded<T>(c.input("x")), rounded<T>(c.input("dy")), rounded<T>(c.input("weight")), {}};
    if (c.options.count("dim")) weight.axis = int(c.options.at("dim"));
    const Slab slab = weight.axis ? slab_of(c, std::size_t(*weight.axis)) : Slab{1, 1, weight.v.size()};
    const Weighed w = reference::weight_norm(slab, weight.v, weight.g);
    const auto d = reference::weight_norm_backward(slab, weight.dw, weight.v, weight.g);
    const auto run = [&](const auto& device, Order order) {
      return cases_test::run_weight_norm<T>(device, weight, order);
    };
    for (const WeightResult& result : run_weights_everywhere(run)) {
      // torch's norm, quotient and product round one by one.
      expect_weighed<T>("y", result.w, results.at("y"), w, slab.rows(), 3);
      expect_weighed<T>("dx", result.dv, results.at("dx"), d.dweight, slab.rows(), 3);
      expect_weighed<T>("dweight", result.dg, results.at("dweight"), d.dgain, slab.rows(), 3);
    }
  });
}

// The numbers of one run on all devices, in both orders and by the layer, against torch's where they are given.
template <class T>
void check_spectral(const SpectralCase& spectral, const Slab& slab, const Named* torch) {
  const auto exact =
      reference::spectral_norm(slab, spectral.dw_hat, spectral.w, spectral.u, spectral.v, 1, spectral.iterations);
  auto all = run_weights_everywhere(
      [&](const auto& device, Order order) { return cases_test::run_spectral_norm<T>(device, spectral, order); });
  all.push_back(cases_test::run_spectral_norm_layer<T>(spectral));
  const auto torch_or = [&](const char* name, const Values& otherwise) { return torch ? torch->at(name) : otherwise; };
  const bool turned = spectral.axis == 1;
  for (const SpectralResult& result : all) {
    expect_weighed<T>("y", result.w_hat, torch_or("y", exact.w_hat.value), exact.w_hat, slab.size());
    expect_weighed<T>("dx", result.dw, torch_or("dx", exact.dweight.value), exact.dweight, slab.size());
    // A unit vector out of sums of up to its size; its steps are no smaller than those of 1.
    expect<T>("u", result.u, torch_or(turned ? "v" : "u", exact.u), exact.u, Values(exact.u.size(), 1), slab.rows());
    expect<T>("v", result.v, torch_or(turned ? "u" : "v", exact.v), exact.v, Values(exact.v.size(), 1), slab.length);
  }
}

// A step of torch's parametrization is u = W v, then v = W^T u; the library has the paper's order (and that of torch's
// older torch.nn.utils.spectral_norm), v first. torch's is the library's on the columns, that is with axis 1 and the
// vectors exchanged. Without a step there is nothing to exchange.
void check_spectral_norm(const Case& c) {
  for_each_result(c, [&]<class T, class P>(Type<T>, Type<P>, const Named& results) {
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
      const bool train = c.options.at("train") > 0;
      const Values u = rounded<T>(c.input("u")), v = rounded<T>(c.input("v0"));
      SpectralCase spectral{c.shape, rounded<T>(c.input("x")), rounded<T>(c.input("dy")), u, v, train ? 1 : 0, 0};
      check_spectral<T>(spectral, slab_of(c, 0), train ? nullptr : &results);
      if (!train) return;
      const auto rows = u.size(), columns = v.size();
      spectral.shape = {Eigen::Index(rows), Eigen::Index(columns)};
      spectral.axis = 1;
      std::swap(spectral.u, spectral.v);
      check_spectral<T>(spectral, reference::slab({rows, columns}, 1, 1), &results);
    } else {
      FAIL_CHECK("spectral_norm is not compiled for this type");
    }
  });
}

void check_standardization(const Case& c) {
  const bool scaled = c.op == "scaled_weight_standardization", added = c.option("eps_added", 0) > 0;
  const auto kind = !scaled ? WeightStandardizationKind::plain
                    : added ? WeightStandardizationKind::scaled_added
                            : WeightStandardizationKind::scaled;
  const auto of_reference = !scaled ? reference::Standardization::plain
                            : added ? reference::Standardization::added
                                    : reference::Standardization::clamped;
  const double eps = c.options.at(scaled && !added ? "floor" : "eps");
  for_each_result(c, [&]<class T, class P>(Type<T>, Type<P>, const Named& results) {
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
      const WeightCase weight{c.shape, rounded<T>(c.input("x")), rounded<T>(c.input("dy")),
                              rounded<T>(c.input("weight")), 0};
      const Slab slab = slab_of(c, 0);
      const Weighed w = reference::standardized(slab, weight.v, weight.g, of_reference, eps);
      const auto d = reference::standardized_backward(slab, weight.dw, weight.v, weight.g, of_reference, eps);
      const auto run = [&](const auto& device, Order order) {
        return cases_test::run_standardization<T>(device, weight, kind, eps, order);
      };
      for (const WeightResult& result : run_weights_everywhere(run)) {
        expect_weighed<T>("y", result.w, results.at("y"), w, slab.rows());
        expect_weighed<T>("dx", result.dv, results.at("dx"), d.dweight, slab.rows());
        if (scaled) expect_weighed<T>("dweight", result.dg, results.at("dweight"), d.dgain, slab.rows());
      }
    } else {
      FAIL_CHECK("weight standardization is not compiled for this type");
    }
  });
}

}  // namespace

void golden::add_weight_norms(Table& table) {
  table["weight_norm"] = check_weight_norm;
  table["spectral_norm"] = check_spectral_norm;
  table["weight_standardization"] = check_standardization;
  table["scaled_weight_standardization"] = check_standardization;
}
