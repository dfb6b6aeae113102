// Spectral norm and sigmaReparam: a weight divided by its largest singular value.
#include "norms/weight_checks.hpp"

#include <Eigen/SVD>

using namespace weights_test;

namespace {

constexpr auto overwrite = ek::GradientMode::overwrite;

// The number that the library gives to column `column` of the slab. Where the axis stands between others, a row-major
// weight counts its columns as the slab does, a column-major one the other way round.
template <class X>
std::size_t column_in_library(const Slab& s, std::size_t column) {
  bool row_major = true;
  if constexpr (requires { X::IsRowMajor; }) row_major = X::IsRowMajor;
  if constexpr (requires { X::Layout; }) row_major = int(X::Layout) == int(Eigen::RowMajor);
  return row_major ? column : column % s.inner * s.outer + column / s.inner;
}

template <class X>
Values columns_in_library(const Slab& s, const Values& slab_order) {
  Values v(slab_order.size());
  for (std::size_t j = 0; j < v.size(); ++j) v[column_in_library<X>(s, j)] = slab_order[j];
  return v;
}

template <class T, class X>
void check(const X& like, const ek::SpectralNormOptions& options, const Slab& slab, double exponent = 0) {
  INFO("steps " << options.power_iterations);
  Values w_values = support::normal<T>(slab.size(), slab.size(), 0.25, 1.5);
  for (double& w : w_values) w = double(T(std::ldexp(w, int(exponent))));
  const Values dy_values = support::normal<T>(slab.size(), slab.size() + 1),
               u_values = support::normal<T>(slab.length, 3, 0.2, 0.3),
               v_values = support::normal<T>(slab.rows(), 4, 0.2, 0.3);
  const double gamma = 0.75;
  const X w = filled(like, w_values), dy = filled(like, dy_values);
  X w_hat = filled(like, Values(slab.size(), NAN)), dw = w_hat;
  ek::SpectralNormSaved<ek::accumulator_t<T>> saved;
  for (bool with_gamma : {false, true}) {
    Vector<T> u = vector_of<T>(u_values), v = vector_of<T>(columns_in_library<X>(slab, v_values));
    Vector<T> gammas = Vector<T>::Constant(1, T(gamma)), dgamma = Vector<T>::Constant(1, nan_of<T>());
    if (with_gamma) {
      ek::sigma_reparam(ek::serial, w, gammas, u, v, w_hat, saved, options);
      ek::sigma_reparam_backward(ek::serial, dy, w, gammas, saved, dw, dgamma, overwrite);
    } else {
      ek::spectral_norm(ek::serial, w, u, v, w_hat, saved, options);
      ek::spectral_norm_backward(ek::serial, dy, w, saved, dw, overwrite);
    }
    const auto r = reference::spectral_norm(slab, dy_values, w_values, u_values, v_values, with_gamma ? gamma : 1,
                                            options.power_iterations);
    const Values v_expected = columns_in_library<X>(slab, r.v);
    const std::size_t n = slab.size();
    CHECK(worst<T>(values_of(w_hat), r.w_hat, n) <= 1);
    if (std::isfinite(double(T(r.dweight.magnitude[0])))) CHECK(worst<T>(values_of(dw), r.dweight, n) <= 1);
    if (with_gamma) CHECK(worst<T>(values_of(dgamma), r.dgamma, n) <= 1);
    const auto sized = [](const Values& values) {
      Weighed weighed{values, values};
      for (double& m : weighed.magnitude) m = 100;  // as in the reference
      return weighed;
    };
    CHECK(worst<T>(values_of(u), sized(r.u), n) <= 1);
    CHECK(worst<T>(values_of(v), sized(v_expected), n) <= 1);
  }
}

RowMatrix<double> matrix(std::size_t rows, std::size_t cols, const Values& values) {
  return matrix_of<RowMatrix<double>>(rows, cols, values);
}

}  // namespace

TEMPLATE_TEST_CASE("spectral_norm equals the reference along every axis", "[norms][spectral_norm]",
                   SUPPORT_WIDE_SCALARS, SUPPORT_SMALL_SCALARS) {
  for_each_weight<TestType>([](const auto& like, int axis, const Slab& slab) {
    for (int steps : {0, 1, 3}) check<TestType>(like, {.power_iterations = steps, .axis = axis}, slab);
  });
  check<TestType>(RowMatrix<TestType>(127, 1031), {}, {1, 127, 1031});
}

TEST_CASE("spectral_norm's known values", "[norms][spectral_norm]") {
  const auto w = matrix(2, 2, {3, 0, 4, 5});
  RowMatrix<double> y(2, 2);
  Vector<double> u = vector_of<double>({1, 0}), v = Vector<double>::Zero(2);
  ek::SpectralNormSaved<double> saved;
  ek::spectral_norm(ek::serial, w, u, v, y, saved);
  CHECK(saved.sigma() == Approx(5).epsilon(1e-15));
  CHECK(std::abs(v(0) - 1) + std::abs(v(1)) < 1e-15);
  CHECK(std::abs(u(0) - 0.6) + std::abs(u(1) - 0.8) < 1e-15);
  CHECK((y - matrix(2, 2, {.6, 0, .8, 1})).cwiseAbs().maxCoeff() < 1e-15);
  // From call to call or in one call: the vectors persist.
  Vector<double> u_at_once = vector_of<double>({1, 0}), v_at_once = v;
  ek::spectral_norm(ek::serial, w, u_at_once, v_at_once, y, saved, {.power_iterations = 200});
  CHECK(saved.sigma() == Approx(std::sqrt(45)).epsilon(1e-14));
  for (int call = 1; call < 200; ++call) ek::spectral_norm(ek::serial, w, u, v, y, saved);
  CHECK((u == u_at_once).all());
  CHECK((v == v_at_once).all());
  CHECK(saved.sigma() == Approx(std::sqrt(45)).epsilon(1e-14));
  // No step: the vectors are what they were, and so is sigma.
  ek::spectral_norm(ek::serial, w, u, v, y, saved, {.power_iterations = 0});
  CHECK((u == u_at_once).all());
  CHECK((v == v_at_once).all());
  CHECK(saved.sigma() == Approx(std::sqrt(45)).epsilon(1e-14));
}

TEST_CASE("spectral_norm finds the largest singular value", "[norms][spectral_norm]") {
  const auto w = matrix(9, 14, support::normal<double>(126, 5));
  const double largest = Eigen::JacobiSVD<Eigen::MatrixXd>(w).singularValues()(0);
  Vector<double> u = Vector<double>::Ones(9), v = Vector<double>::Ones(14);
  RowMatrix<double> y(9, 14);
  ek::SpectralNormSaved<double> saved;
  ek::spectral_norm(ek::serial, w, u, v, y, saved, {.power_iterations = 500});
  CHECK(saved.sigma() == Approx(largest).epsilon(1e-12));
  CHECK(Eigen::JacobiSVD<Eigen::MatrixXd>(y).singularValues()(0) == Approx(1).epsilon(1e-12));
  CHECK(u.matrix().norm() == Approx(1).epsilon(1e-14));
  CHECK(v.matrix().norm() == Approx(1).epsilon(1e-14));
}

TEST_CASE("spectral_norm's gradients equal central differences with u and v held", "[norms][spectral_norm]") {
  const std::size_t rows = 4, cols = 5;
  const Values w = support::normal<double>(rows * cols, 6), dy = support::normal<double>(rows * cols, 7);
  for (int axis : {0, 1}) {
    const std::size_t units = axis == 0 ? rows : cols;
    Vector<double> u = Vector<double>::Ones(ek::Index(units)), v = Vector<double>::Ones(ek::Index(20 / units));
    RowMatrix<double> y(rows, cols), dw = RowMatrix<double>::Constant(rows, cols, 3);
    ek::SpectralNormSaved<double> saved;
    const Values gamma{1.75};
    ek::spectral_norm(ek::serial, matrix(rows, cols, w), u, v, y, saved, {.power_iterations = 2, .axis = axis});
    const auto loss = [&](const Values& w_at, const Values& gamma_at) {
      ek::SpectralNormSaved<double> own;
      Vector<double> u_now = u, v_now = v;
      RowMatrix<double> y_now(rows, cols);
      ek::sigma_reparam(ek::serial, matrix(rows, cols, w_at), vector_of<double>(gamma_at), u_now, v_now, y_now, own,
                        {.power_iterations = 0, .axis = axis});
      return support::weighted_sum(values_of(y_now), dy);
    };
    const auto gradient = [&](const Values& factor) {
      return support::central_differences([&](const Values& p) { return loss(p, factor); }, w);
    };
    using support::gradient_distance, support::gradient_tolerance;
    // The forward that moved u and v is followed by a backward with the moved ones.
    ek::spectral_norm_backward(ek::serial, matrix(rows, cols, dy), matrix(rows, cols, w), saved, dw, overwrite);
    CHECK(gradient_distance(values_of(dw), gradient({1})) < gradient_tolerance);
    const RowMatrix<double> once = dw;
    ek::spectral_norm_backward(ek::serial, matrix(rows, cols, dy), matrix(rows, cols, w), saved, dw);
    CHECK((dw - 2 * once).cwiseAbs().maxCoeff() < 1e-13);

    Vector<double> dgamma = Vector<double>::Constant(1, 5);
    ek::sigma_reparam(ek::serial, matrix(rows, cols, w), vector_of<double>(gamma), u, v, y, saved,
                      {.power_iterations = 0, .axis = axis});
    const auto backward = [&](ek::GradientMode mode) {
      ek::sigma_reparam_backward(ek::serial, matrix(rows, cols, dy), matrix(rows, cols, w), vector_of<double>(gamma),
                                 saved, dw, dgamma, mode);
    };
    backward(overwrite);
    CHECK(gradient_distance(values_of(dw), gradient(gamma)) < gradient_tolerance);
    CHECK(gradient_distance(values_of(dgamma), support::central_differences([&](const Values& p) { return loss(w, p); },
                                                                            gamma)) < gradient_tolerance);
    const RowMatrix<double> dw_once = dw;
    const double dgamma_once = dgamma(0);
    backward(ek::GradientMode::accumulate);
    CHECK((dw - 2 * dw_once).cwiseAbs().maxCoeff() < 1e-13);
    CHECK(std::abs(dgamma(0) - 2 * dgamma_once) < 1e-13);
  }
}

TEMPLATE_TEST_CASE("spectral_norm of huge and tiny weights", "[norms][spectral_norm][hard]", SUPPORT_WIDE_SCALARS) {
  const bool is_double = std::is_same_v<TestType, double>;
  for (double exponent : {-100, 100, 120, -1000, -700, 700, 1018}) {
    if (!is_double && std::abs(exponent) > 120) continue;
    INFO("w times 2^" << exponent);
    check<TestType>(RowMatrix<TestType>(6, 11), {.power_iterations = 2}, {1, 6, 11}, exponent);
    check<TestType>(ColMatrix<TestType>(6, 11), {.power_iterations = 2}, {11, 6, 1}, exponent);
    check<TestType>(RowMatrix<TestType>(6, 11), {.power_iterations = 0, .axis = 1}, {6, 11, 1}, exponent);
  }
}

TEST_CASE("spectral_norm of a weight whose 1/sigma is infinite", "[norms][spectral_norm][hard]") {
  const RowMatrix<double> w = matrix(2, 2, {3, 0, 4, 5}) * 1e-310, dy = RowMatrix<double>::Zero(2, 2);
  RowMatrix<double> y(2, 2), dw(2, 2);
  Vector<double> u = vector_of<double>({1, 0}), v = u;
  ek::SpectralNormSaved<double> saved;
  ek::spectral_norm(ek::serial, w, u, v, y, saved);
  ek::spectral_norm_backward(ek::serial, dy, w, saved, dw, overwrite);
  CHECK((y - matrix(2, 2, {.6, 0, .8, 1})).cwiseAbs().maxCoeff() < 1e-12);  // 1e-310 has thirteen digits
  CHECK(dw.isZero(0));
}

TEST_CASE("spectral_norm of zeros is zero and keeps its vectors", "[norms][spectral_norm]") {
  const RowMatrix<double> w = RowMatrix<double>::Zero(2, 3), dy = RowMatrix<double>::Ones(2, 3);
  RowMatrix<double> y(2, 3), dw(2, 3);
  Vector<double> u = vector_of<double>({.6, .8}), v = vector_of<double>({1, 0, 0}), gamma = Vector<double>::Ones(1),
                 dgamma(1);
  ek::SpectralNormSaved<double> saved;
  for (int steps : {0, 1, 5}) {
    ek::sigma_reparam(ek::serial, w, gamma, u, v, y, saved, {.power_iterations = steps});
    ek::sigma_reparam_backward(ek::serial, dy, w, gamma, saved, dw, dgamma, overwrite);
    CHECK(saved.sigma() == 0);
    CHECK(y.isZero(0));
    CHECK(dw.isZero(0));
    CHECK(dgamma(0) == 0);
    CHECK((u == vector_of<double>({.6, .8})).all());
    CHECK((v == vector_of<double>({1, 0, 0})).all());
  }
  // A u that the weight's transpose sends to zero: v stays, and with it the iteration finds its way.
  const auto low = matrix(2, 2, {0, 0, 4, 5});
  RowMatrix<double> low_y(2, 2);
  Vector<double> low_u = vector_of<double>({1, 0}), low_v = vector_of<double>({1, 0});
  ek::spectral_norm(ek::serial, low, low_u, low_v, low_y, saved);
  CHECK((low_u == vector_of<double>({0, 1})).all());
  CHECK(saved.sigma() == Approx(4));
  ek::spectral_norm(ek::serial, low, low_u, low_v, low_y, saved);
  CHECK(saved.sigma() == Approx(std::sqrt(41)).epsilon(1e-14));
}

TEMPLATE_TEST_CASE("spectral_norm has the same bits on every device and number of threads", "[norms][spectral_norm]",
                   SUPPORT_WIDE_SCALARS, Eigen::bfloat16) {
  using T = TestType;
  for (int axis : {0, 1}) {
    const std::size_t rows = 67, cols = 129, units = axis == 0 ? rows : cols;
    const auto w = matrix_of<RowMatrix<T>>(rows, cols, support::normal<T>(rows * cols, 21));
    const auto dy = matrix_of<RowMatrix<T>>(rows, cols, support::normal<T>(rows * cols, 22));
    const auto gamma = vector_of<T>({1.5});
    std::vector<Values> first;
    support::for_each_device([&](const auto& device) {
      Vector<T> u = vector_of<T>(support::normal<T>(units, 23)),
                v = vector_of<T>(support::normal<T>(rows * cols / units, 24)), dgamma = gamma;
      RowMatrix<T> y(rows, cols), dw = dy;
      ek::SpectralNormSaved<ek::accumulator_t<T>> saved;
      ek::sigma_reparam(device, w, gamma, u, v, y, saved, {.power_iterations = 3, .axis = axis});
      ek::sigma_reparam_backward(device, dy, w, gamma, saved, dw, dgamma);
      const std::vector<Values> now{values_of(y), values_of(dw), values_of(dgamma), values_of(u), values_of(v)};
      if (first.empty()) first = now;
      CHECK(now == first);
    });
  }
}

TEST_CASE("spectral_norm of blocks leaves all but its output alone", "[norms][spectral_norm]") {
  const auto w = matrix(4, 5, support::normal<double>(20, 31));
  RowMatrix<double> frame = RowMatrix<double>::Constant(7, 9, 77), out = frame, expected(4, 5);
  frame.block(1, 2, 4, 5) = w;
  const RowMatrix<double> before = frame;
  Vector<double> u = Vector<double>::Ones(4), v = Vector<double>::Ones(5), u_again = u, v_again = v;
  ek::SpectralNormSaved<double> saved;
  ek::spectral_norm(ek::serial, w, u, v, expected, saved);
  ek::spectral_norm(ek::serial, frame.block(1, 2, 4, 5), u_again, v_again, out.block(2, 1, 4, 5), saved);
  CHECK((out.block(2, 1, 4, 5) - expected).cwiseAbs().maxCoeff() < 1e-15);
  CHECK(frame == before);
  out.block(2, 1, 4, 5).setConstant(77);
  CHECK((out.array() == 77).all());
  // In place only where the output is exactly the weight.
  RowMatrix<double> own = w, dw(4, 5);
  ek::spectral_norm(ek::serial, own, u_again, v_again, own, saved);
  CHECK(own != w);
  CHECK(error_of([&] { ek::spectral_norm_backward(ek::serial, w, own, saved, dw); }).find("in-place") !=
        std::string::npos);
}

TEST_CASE("spectral_norm refuses what does not fit", "[norms][spectral_norm][errors]") {
  const auto w = matrix(2, 3, {3, 4, 0, 1, 2, 2});
  RowMatrix<double> y = RowMatrix<double>::Constant(2, 3, 77), turned = RowMatrix<double>::Constant(3, 2, 77), dw = y;
  Vector<double> two = Vector<double>::Ones(2), three = Vector<double>::Ones(3), one = Vector<double>::Ones(1);
  ek::SpectralNormSaved<double> saved;
  CHECK(error_of([&] { ek::spectral_norm(ek::serial, w, three, three, y, saved); }) ==
        "spectral_norm: u has 3 values, w has 2 rows (w is 2x3, axis 0)");
  CHECK(error_of([&] { ek::spectral_norm(ek::serial, w, two, two, y, saved); }) ==
        "spectral_norm: v has 2 values, w has 3 columns (w is 2x3, axis 0)");
  CHECK(error_of([&] { ek::spectral_norm(ek::serial, w, two, three, turned, saved); }) ==
        "spectral_norm: w_hat is 3x2, w is 2x3, axis 0");
  CHECK(error_of([&] { ek::sigma_reparam(ek::serial, w, two, two, three, y, saved); }) ==
        "sigma_reparam: gamma has 2 values, w has 1 scale for all of it (w is 2x3, axis 0)");
  CHECK(error_of([&] { ek::spectral_norm(ek::serial, w, two, three, y, saved, {.power_iterations = -1}); }) ==
        "spectral_norm: power_iterations is -1, expected at least 0");
  CHECK(error_of([&] { ek::spectral_norm_backward(ek::serial, w, w, saved, dw); }).find("saved is empty") !=
        std::string::npos);
  Vector<double> memory = Vector<double>::Ones(8);
  CHECK(error_of([&] {
          ek::spectral_norm(ek::serial, w, Eigen::Map<Vector<double>>(memory.data(), 2), three,
                            Eigen::Map<RowMatrix<double>>(memory.data() + 1, 2, 3), saved);
        }).find("w_hat overlaps u") != std::string::npos);
  CHECK((two == 1).all());
  RowMatrix<double> out(2, 3);
  ek::sigma_reparam(ek::serial, w, one, two, three, out, saved);
  CHECK(error_of([&] { ek::spectral_norm_backward(ek::serial, turned, w, saved, dw); }) ==
        "spectral_norm_backward: dw_hat is 3x2, w is 2x3, axis 0");
  CHECK(error_of([&] { ek::sigma_reparam_backward(ek::serial, w, w, one, saved, dw, two); }) ==
        "sigma_reparam_backward: dgamma has 2 values, w has 1 scale for all of it (w is 2x3, axis 0)");
  CHECK(error_of([&] { ek::spectral_norm_backward(ek::serial, turned, turned, saved, turned); }) ==
        "spectral_norm_backward: saved holds 2 rows of 3 columns, w is 3x2, axis 0");
  RowMatrix<double> own = w;
  CHECK(error_of([&] { ek::spectral_norm_backward(ek::serial, own, w, saved, own); }).find("dw is dw_hat") !=
        std::string::npos);
  CHECK((y.array() == 77).all());
  CHECK((turned.array() == 77).all());
  CHECK((dw.array() == 77).all());
}

TEST_CASE("the layers SpectralNorm and SigmaReparam", "[norms][spectral_norm]") {
  Eigen::Tensor<float, 4, Eigen::RowMajor> initial(6, 4, 3, 3), y(6, 4, 3, 3), y_again(6, 4, 3, 3), dy(6, 4, 3, 3),
      dw(6, 4, 3, 3);
  const Values values = support::normal<float>(216, 41);
  fill(initial, values);
  fill(dy, support::normal<float>(216, 42));
  const double largest =
      Eigen::JacobiSVD<Eigen::MatrixXd>(matrix_of<Eigen::MatrixXd>(36, 6, values)).singularValues()(0);

  ek::SpectralNorm<float> norm(initial, {.power_iterations = 2}, 7);
  CHECK(double(norm.saved.sigma()) == Approx(largest).epsilon(0.05));  // 15 steps come near
  Vector<float> u = norm.u(), v = norm.v();
  CHECK(u.matrix().norm() == Approx(1).epsilon(1e-6));
  ek::SpectralNorm<float> same_seed(initial, {}, 7), other_seed(initial, {}, 8);
  CHECK((same_seed.u() == u).all());
  CHECK_FALSE((other_seed.u() == u).all());

  norm.fold(ek::serial, y);
  CHECK((norm.u() == u).all());
  norm.materialize(Eigen::DefaultDevice{}, y);
  CHECK_FALSE((norm.u() == u).all());
  norm.backward(ek::serial, dy);
  norm.backward(ek::serial, dy);
  ek::SpectralNormSaved<float> saved;
  ek::spectral_norm(ek::serial, initial, u, v, y_again, saved, {.power_iterations = 2});
  ek::spectral_norm_backward(ek::serial, dy, initial, saved, dw, overwrite);
  CHECK(values_of(y) == values_of(y_again));
  CHECK((norm.u() == u).all());
  CHECK((norm.v() == v).all());
  for (ek::Index i = 0; i < 216; ++i) CHECK(norm.weight().gradient()[i] == 2 * dw.data()[i]);
  // The stored weight is never overwritten.
  CHECK(std::equal(initial.data(), initial.data() + 216, norm.weight().value()));

  ek::SigmaReparam<float> reparam(initial, {}, 7);
  reparam.gamma().fill(2.5f);
  reparam.fold(ek::serial, y);
  same_seed.fold(ek::serial, y_again);
  for (ek::Index i = 0; i < 216; ++i) CHECK(y.data()[i] == Approx(2.5f * y_again.data()[i]).epsilon(1e-6));
  reparam.backward(ek::serial, dy);
  double dgamma = 0;
  for (ek::Index i = 0; i < 216; ++i) dgamma += double(dy.data()[i]) * double(y_again.data()[i]);
  CHECK(*reparam.gamma().gradient() == Approx(dgamma).epsilon(1e-5));
  std::vector<std::string> names;
  std::vector<bool> decays;
  const auto note = [&](ek::ParameterRef<float> p) {
    names.emplace_back(p.name);
    decays.push_back(p.weight_decay);
  };
  reparam.for_each_parameter(note);
  norm.for_each_parameter(note);
  CHECK(names == std::vector<std::string>{"gamma", "original", "original"});
  CHECK(decays == std::vector<bool>{false, true, true});

  ek::SpectralNorm<float> zero(RowMatrix<float>(RowMatrix<float>::Zero(3, 4)));
  RowMatrix<float> flat = RowMatrix<float>::Ones(3, 4);
  zero.materialize(ek::serial, flat);
  CHECK(flat.isZero(0));
  CHECK(error_of([&] { norm.materialize(ek::serial, flat); }) ==
        "SpectralNorm::materialize: w_hat is 3x4, the weight is 6x4x3x3");
}
