// Weight standardization, plain and scaled.
#include "norms/weight_checks.hpp"

using namespace weights_test;
using reference::Standardization;

namespace {

constexpr auto overwrite = ek::GradientMode::overwrite;

// One face for the three forms.
struct Form {
  Standardization kind;
  double eps;
  ek::Axes axis = 0;
  bool has_gain = true;  // the plain form has none

  bool gained() const { return has_gain && kind != Standardization::plain; }
  ek::ScaledWeightStandardizationOptions scaled() const {
    return {.eps_added = kind == Standardization::added, .eps = eps, .axis = axis};
  }
  template <class Device, class W, class G, class What, class Saved>
  void forward(const Device& device, const W& w, const G& gain, What& w_hat, Saved& saved) const {
    if (kind == Standardization::plain)
      ek::weight_standardization(device, w, w_hat, saved, {.eps = eps, .axis = axis});
    else if (has_gain)
      ek::scaled_weight_standardization(device, w, gain, w_hat, saved, scaled());
    else
      ek::scaled_weight_standardization(device, w, ek::none, w_hat, saved, scaled());
  }
  template <class Device, class Dy, class W, class G, class Saved, class Dw, class Dg>
  void backward(const Device& device, const Dy& dy, const W& w, const G& gain, Saved& saved, Dw& dw, Dg& dgain,
                ek::GradientMode mode) const {
    if (kind == Standardization::plain)
      ek::weight_standardization_backward(device, dy, w, saved, dw, mode);
    else if (has_gain)
      ek::scaled_weight_standardization_backward(device, dy, w, gain, saved, dw, dgain, mode);
    else
      ek::scaled_weight_standardization_backward(device, dy, w, ek::none, saved, dw, ek::none, mode);
  }
};

template <class T, class X>
void check(const X& like, const Form& form, const Slab& slab, const Values& w_values) {
  INFO("form " << int(form.kind) << ", eps " << form.eps << ", gain " << form.gained());
  const Values dy_values = support::normal<T>(slab.size(), slab.size() + 1),
               gain_values = support::normal<T>(slab.length, slab.size() + 2, 0.5);
  const X w = filled(like, w_values), dy = filled(like, dy_values);
  const auto gain = vector_of<T>(gain_values);
  X w_hat = filled(like, Values(slab.size(), NAN)), dw = w_hat;
  Vector<T> dgain = Vector<T>::Constant(gain.size(), nan_of<T>());
  ek::WeightStandardizationSaved<ek::accumulator_t<T>> saved;
  form.forward(ek::serial, w, gain, w_hat, saved);
  form.backward(ek::serial, dy, w, gain, saved, dw, dgain, overwrite);
  const Values used = form.gained() ? gain_values : Values{};
  const auto d = reference::standardized_backward(slab, dy_values, w_values, used, form.kind, form.eps);
  CHECK(worst<T>(values_of(w_hat), reference::standardized(slab, w_values, used, form.kind, form.eps), slab.rows()) <=
        1);
  CHECK(worst<T>(values_of(dw), d.dweight, slab.rows()) <= 1);
  if (form.gained()) CHECK(worst<T>(values_of(dgain), d.dgain, slab.rows()) <= 1);
}

template <class T, class X>
void check_forms(const X& like, ek::Axes axis, const Slab& slab) {
  const Values w = support::normal<T>(slab.size(), slab.size(), 0.25, 1.5);
  check<T>(like, {Standardization::plain, 1e-5, axis}, slab, w);
  check<T>(like, {Standardization::clamped, 1e-4, axis}, slab, w);
  check<T>(like, {Standardization::added, 1e-6, axis}, slab, w);
}

RowMatrix<double> matrix(std::size_t rows, std::size_t cols, const Values& values) {
  return matrix_of<RowMatrix<double>>(rows, cols, values);
}

}  // namespace

TEMPLATE_TEST_CASE("weight standardization equals the reference along every axis", "[norms][weight_standardization]",
                   SUPPORT_WIDE_SCALARS, SUPPORT_SMALL_SCALARS) {
  using T = TestType;
  for_each_weight<T>([](const auto& like, int axis, const Slab& slab) { check_forms<T>(like, axis, slab); });
  const Slab s{1, 6, 20};
  const RowMatrix<T> like(6, 20);
  const Values w = support::normal<T>(s.size(), 5, 0.1, 0.5);
  for (Standardization kind : {Standardization::plain, Standardization::clamped, Standardization::added})
    for (double eps : {0.0, 0.25, 5.0}) {  // 5 lies among the values of var * fan_in
      check<T>(like, {kind, eps}, s, w);
      check<T>(like, {kind, eps, 0, false}, s, w);
    }
  check_forms<T>(RowMatrix<T>(257, 1031), 0, {1, 257, 1031});
}

TEST_CASE("weight standardization keeps neighbouring axes together", "[norms][weight_standardization]") {
  check_forms<float>(Eigen::Tensor<float, 4, Eigen::RowMajor>(3, 4, 5, 2), {1, 2}, {3, 20, 2});
}

TEST_CASE("weight standardization's defaults", "[norms][weight_standardization]") {
  const Values values = support::normal<double>(40, 6, 0, 1e-3);  // var * fan_in is 1e-5, below NFNet's 1e-4
  const auto w = matrix(4, 10, values);
  RowMatrix<double> y(4, 10);
  ek::WeightStandardizationSaved<double> saved;
  const auto near = [&](Standardization kind, double eps) {
    return worst<double>(values_of(y), reference::standardized({1, 4, 10}, values, {}, kind, eps), 10) <= 1;
  };
  ek::weight_standardization(ek::serial, w, y, saved);
  CHECK(near(Standardization::plain, 1e-5));
  ek::scaled_weight_standardization(ek::serial, w, ek::none, y, saved);
  CHECK(near(Standardization::clamped, 1e-4));
  CHECK(saved.rstd(0) == Approx(100).epsilon(1e-15));
  ek::scaled_weight_standardization(ek::serial, w, ek::none, y, saved, {.eps_added = true});
  CHECK(near(Standardization::added, 1e-6));
  ek::weight_standardization(ek::serial, w, y, saved, {.eps = ek::machine_epsilon});
  CHECK(near(Standardization::plain, 0x1p-52));
  CHECK(saved.mean(1) == Approx(w.row(1).mean()).epsilon(1e-12));
  const RowMatrix<float> narrow = w.cast<float>();
  RowMatrix<float> narrow_y(4, 10);
  ek::WeightStandardizationSaved<float> narrow_saved;
  ek::weight_standardization(ek::serial, narrow, narrow_y, narrow_saved, {.eps = ek::machine_epsilon});
  CHECK(worst<float>(values_of(narrow_y),
                     reference::standardized({1, 4, 10}, values_of(narrow), {}, Standardization::plain, 0x1p-23),
                     10) <= 1);
}

TEST_CASE("standardized units have mean 0, and the scaled ones norm 1", "[norms][weight_standardization]") {
  Eigen::Tensor<float, 4, Eigen::RowMajor> w(8, 5, 3, 3), y(8, 5, 3, 3);
  fill(w, support::normal<float>(360, 7, 3, 0.5));
  ek::WeightStandardizationSaved<float> saved;
  ek::scaled_weight_standardization(ek::serial, w, ek::none, y, saved);
  const auto units = matrix_of<RowMatrix<double>>(8, 45, values_of(y));
  CHECK(units.rowwise().mean().cwiseAbs().maxCoeff() < 1e-7);
  CHECK((units.rowwise().norm().array() - 1).abs().maxCoeff() < 1e-6);
  ek::weight_standardization(ek::serial, w, y, saved, {.eps = 0});
  const auto plain = matrix_of<RowMatrix<double>>(8, 45, values_of(y));
  CHECK((plain.rowwise().squaredNorm().array() / 45 - 1).abs().maxCoeff() < 1e-6);
  // A shift and a positive factor change nothing.
  Eigen::Tensor<float, 4, Eigen::RowMajor> moved = w, again(8, 5, 3, 3);
  for (ek::Index i = 0; i < 360; ++i) moved.data()[i] = 4 * moved.data()[i] + 8;
  ek::weight_standardization(ek::serial, moved, again, saved, {.eps = 0});
  for (ek::Index i = 0; i < 360; ++i) CHECK(std::abs(y.data()[i] - again.data()[i]) < 1e-5f);
}

TEST_CASE("weight standardization's gradients equal central differences", "[norms][weight_standardization]") {
  const std::size_t rows = 4, cols = 6;
  for (int axis : {0, 1})
    // 2 lies among the values of var * fan_in: some units take the one branch of the maximum, some the other.
    for (const Form& form : {Form{Standardization::plain, 1e-2, axis}, Form{Standardization::clamped, 2, axis},
                             Form{Standardization::clamped, 1e-4, axis}, Form{Standardization::added, 1e-2, axis},
                             Form{Standardization::clamped, 2, axis, false}}) {
      INFO("axis " << axis << ", form " << int(form.kind) << ", eps " << form.eps);
      const std::size_t units = axis == 0 ? rows : cols;
      Values w = support::normal<double>(rows * cols, 8, 0.25);
      const Values gain = support::normal<double>(units, 9, 0.5), dy = support::normal<double>(rows * cols, 10);
      for (std::size_t i = 0; i < w.size(); ++i)
        if ((axis == 0 ? i / cols : i % cols) == 1) w[i] *= 0.3;  // one unit under the least variance
      ek::WeightStandardizationSaved<double> saved;
      const auto loss = [&](const Values& w_at, const Values& gain_at) {
        RowMatrix<double> y(rows, cols);
        form.forward(ek::serial, matrix(rows, cols, w_at), vector_of<double>(gain_at), y, saved);
        return support::weighted_sum(values_of(y), dy);
      };
      const Values by_w = support::central_differences([&](const Values& p) { return loss(p, gain); }, w);
      const Values by_gain = support::central_differences([&](const Values& p) { return loss(w, p); }, gain);
      loss(w, gain);
      RowMatrix<double> dw = RowMatrix<double>::Constant(rows, cols, 3);
      Vector<double> dgain = Vector<double>::Constant(ek::Index(units), 5);
      const auto backward = [&](ek::GradientMode mode) {
        form.backward(ek::serial, matrix(rows, cols, dy), matrix(rows, cols, w), vector_of<double>(gain), saved, dw,
                      dgain, mode);
      };
      backward(overwrite);
      CHECK(support::gradient_distance(values_of(dw), by_w) < support::gradient_tolerance);
      if (form.gained()) CHECK(support::gradient_distance(values_of(dgain), by_gain) < support::gradient_tolerance);
      const RowMatrix<double> dw_once = dw;
      const Vector<double> dgain_once = dgain;
      backward(ek::GradientMode::accumulate);
      CHECK((dw - 2 * dw_once).cwiseAbs().maxCoeff() < 1e-13);
      if (form.gained()) CHECK((dgain - 2 * dgain_once).abs().maxCoeff() < 1e-13);
    }
}

TEMPLATE_TEST_CASE("weight standardization of huge, tiny and far off values", "[norms][weight_standardization][hard]",
                   SUPPORT_WIDE_SCALARS) {
  using T = TestType;
  const bool is_double = std::is_same_v<T, double>;
  const Slab slab{1, 5, 37};
  const Values base = support::normal<double>(slab.size(), 11, 0.5);
  for (int exponent : {-100, 100, 120, -1000, -700, 700, 1018}) {
    if (!is_double && std::abs(exponent) > 120) continue;
    INFO("w times 2^" << exponent);
    Values w = base;
    for (double& x : w) x = double(T(std::ldexp(double(T(x)), exponent)));
    for (Standardization kind : {Standardization::plain, Standardization::clamped, Standardization::added})
      for (double eps : {0.0, 1e-4}) {
        RowMatrix<T> y(5, 37), dw(5, 37);
        RowMatrix<T> across(37, 5), across_y(37, 5);
        ek::WeightStandardizationSaved<T> saved;
        const Form form{kind, eps, 0, false};
        const auto m = matrix_of<RowMatrix<T>>(5, 37, w);
        across = m.transpose();
        Form{kind, eps, 1, false}.forward(ek::serial, across, ek::none, across_y, saved);
        form.forward(ek::serial, m, ek::none, y, saved);
        const auto expected = reference::standardized(slab, w, {}, kind, eps);
        CHECK(worst<T>(values_of(y), expected, 37) <= 1);
        const RowMatrix<T> turned_y = across_y.transpose();
        CHECK(worst<T>(values_of(turned_y), expected, 37) <= 1);
        const Values ones = support::normal<T>(slab.size(), 12);
        const auto cotangent = matrix_of<RowMatrix<T>>(5, 37, ones);
        Vector<T> no_gain(5);
        form.backward(ek::serial, cotangent, m, no_gain, saved, dw, no_gain, overwrite);
        const auto d = reference::standardized_backward(slab, ones, w, {}, kind, eps);
        const bool fits = std::isfinite(double(T(d.dweight.magnitude[0])));
        if (fits && std::abs(exponent) < 1000) CHECK(worst<T>(values_of(dw), d.dweight, 37) <= 1);
      }
  }
  // A mean of 1e4 and a spread of 1e-2.
  const Values far = support::normal<T>(slab.size(), 13, 1e4, 1e-2);
  for (Standardization kind : {Standardization::plain, Standardization::clamped, Standardization::added})
    check<T>(RowMatrix<T>(5, 37), {kind, 1e-12}, slab, far);
}

TEST_CASE("constant units become zero", "[norms][weight_standardization]") {
  for (double value : {0.0, 0.1, -3e200, 1e-310}) {
    for (double eps : {0.0, 1e-5}) {
      for (Standardization kind : {Standardization::plain, Standardization::clamped, Standardization::added}) {
        INFO("all " << value << ", eps " << eps << ", form " << int(kind));
        const RowMatrix<double> w = RowMatrix<double>::Constant(3, 7, value);
        const auto dy = matrix(3, 7, support::normal<double>(21, 14));
        RowMatrix<double> y(3, 7), dw(3, 7);
        Vector<double> dgain(3), gain = Vector<double>::Ones(3);
        ek::WeightStandardizationSaved<double> saved;
        const Form form{kind, eps};
        form.forward(ek::serial, w, gain, y, saved);
        form.backward(ek::serial, dy, w, gain, saved, dw, dgain, overwrite);
        CHECK(y.isZero(0));
        const double least = kind == Standardization::added ? 7 * eps : eps;
        const RowMatrix<double> expected =
            (dy.colwise() - dy.rowwise().mean()) * (least > 0 ? 1 / std::sqrt(least) : 0);
        CHECK((dw - expected).cwiseAbs().maxCoeff() < 1e-12);
        if (kind != Standardization::plain) CHECK((dgain.abs() == 0).all());
      }
    }
  }
}

TEST_CASE("weight standardization of a NaN is NaN", "[norms][weight_standardization]") {
  const auto w = matrix(2, 3, {1, NAN, 2, 1, 2, 4});
  for (Standardization kind : {Standardization::plain, Standardization::clamped, Standardization::added}) {
    RowMatrix<double> y(2, 3);
    ek::WeightStandardizationSaved<double> saved;
    Form{kind, 1e-4, 0, false}.forward(ek::serial, w, ek::none, y, saved);
    CHECK(y.row(0).array().isNaN().all());
    CHECK(y.row(1).allFinite());
  }
}

TEMPLATE_TEST_CASE("weight standardization has the same bits on every device and number of threads",
                   "[norms][weight_standardization]", SUPPORT_WIDE_SCALARS, Eigen::bfloat16) {
  using T = TestType;
  for (int axis : {0, 1}) {
    const std::size_t rows = 67, cols = 129, units = axis == 0 ? rows : cols;
    const auto w = matrix_of<RowMatrix<T>>(rows, cols, support::normal<T>(rows * cols, 21, 0.5));
    const auto dy = matrix_of<RowMatrix<T>>(rows, cols, support::normal<T>(rows * cols, 22));
    const auto gain = vector_of<T>(support::normal<T>(units, 23, 1));
    std::vector<Values> first;
    support::for_each_device([&](const auto& device) {
      RowMatrix<T> y(rows, cols), dw = dy;
      Vector<T> dgain = gain;
      ek::WeightStandardizationSaved<ek::accumulator_t<T>> saved;
      ek::scaled_weight_standardization(device, w, gain, y, saved, {.axis = axis});
      ek::scaled_weight_standardization_backward(device, dy, w, gain, saved, dw, dgain);
      const std::vector<Values> now{values_of(y), values_of(dw), values_of(dgain)};
      if (first.empty()) first = now;
      CHECK(now == first);
    });
  }
}

TEST_CASE("weight standardization refuses what does not fit", "[norms][weight_standardization][errors]") {
  const auto w = matrix(2, 3, {3, 4, 0, 1, 2, 2});
  const auto two = vector_of<double>({1, 2}), three = vector_of<double>({1, 2, 3});
  RowMatrix<double> y = RowMatrix<double>::Constant(2, 3, 77), turned = RowMatrix<double>::Constant(3, 2, 77), dw = y;
  Vector<double> dgain = Vector<double>::Constant(2, 77), long_dgain = three;
  ek::WeightStandardizationSaved<double> saved;
  CHECK(error_of([&] { ek::scaled_weight_standardization(ek::serial, w, two, y, saved, {.axis = 1}); }) ==
        "scaled_weight_standardization: gain has 2 values, w has 3 units (w is 2x3, axis 1)");
  CHECK(error_of([&] { ek::weight_standardization(ek::serial, w, turned, saved); }) ==
        "weight_standardization: w_hat is 3x2, w is 2x3, axis 0");
  CHECK(error_of([&] { ek::weight_standardization(ek::serial, w, y, saved, {.eps = -1}); }).find("eps") !=
        std::string::npos);
  CHECK(error_of([&] { ek::weight_standardization_backward(ek::serial, w, w, saved, dw); }).find("saved is empty") !=
        std::string::npos);
  RowMatrix<double> out(2, 3);
  ek::scaled_weight_standardization(ek::serial, w, two, out, saved);
  CHECK(error_of([&] { ek::scaled_weight_standardization_backward(ek::serial, turned, w, two, saved, dw, dgain); }) ==
        "scaled_weight_standardization_backward: dw_hat is 3x2, w is 2x3, axis 0");
  CHECK(error_of([&] { ek::scaled_weight_standardization_backward(ek::serial, w, w, three, saved, dw, dgain); }) ==
        "scaled_weight_standardization_backward: gain has 3 values, w has 2 units (w is 2x3, axis 0)");
  CHECK(error_of([&] { ek::scaled_weight_standardization_backward(ek::serial, w, w, two, saved, dw, long_dgain); }) ==
        "scaled_weight_standardization_backward: dgain has 3 values, w has 2 units (w is 2x3, axis 0)");
  CHECK(error_of([&] { ek::weight_standardization_backward(ek::serial, w, w, saved, dw); }).find("gain is none") !=
        std::string::npos);
  CHECK(error_of([&] { ek::weight_standardization_backward(ek::serial, turned, turned, saved, turned); }) ==
        "weight_standardization_backward: saved holds 2 units of 3 values, w is 3x2, axis 0");
  RowMatrix<double> own = w;
  CHECK(error_of([&] {
          ek::scaled_weight_standardization_backward(ek::serial, own, w, two, saved, own, dgain);
        }).find("dw is dw_hat") != std::string::npos);
  CHECK((y.array() == 77).all());
  CHECK((turned.array() == 77).all());
  CHECK((dw.array() == 77).all());
  CHECK((dgain == 77).all());
  ek::weight_standardization(ek::serial, own, own, saved);
  CHECK(error_of([&] { ek::weight_standardization_backward(ek::serial, w, own, saved, dw); }).find("in-place") !=
        std::string::npos);
}

TEST_CASE("the layers of weight standardization", "[norms][weight_standardization]") {
  Eigen::Tensor<float, 4> initial(6, 4, 3, 3), y(6, 4, 3, 3), expected(6, 4, 3, 3), dy(6, 4, 3, 3), dw(6, 4, 3, 3);
  fill(initial, support::normal<float>(216, 31, 0.1));
  fill(dy, support::normal<float>(216, 32));
  const auto same = [](const auto& a, const auto& b) { return values_of(a) == values_of(b); };
  ek::WeightStandardizationSaved<float> saved;

  ek::WeightStandardization<float> plain(initial, {.eps = 1e-3});
  plain.materialize(Eigen::DefaultDevice{}, y);
  plain.backward(ek::serial, dy);
  ek::weight_standardization(ek::serial, initial, expected, saved, {.eps = 1e-3});
  ek::weight_standardization_backward(ek::serial, dy, initial, saved, dw, overwrite);
  CHECK(same(y, expected));
  CHECK(std::equal(dw.data(), dw.data() + 216, plain.weight().gradient()));

  ek::ScaledWeightStandardization<float> scaled(initial, {.eps_added = true});
  Vector<float> gain = Vector<float>::Ones(6), dgain(6);
  for (float factor : {1.0f, 2.5f}) {
    gain.setConstant(factor);
    scaled.gain().fill(factor);
    scaled.materialize(ek::serial, y);
    scaled.backward(ek::serial, dy, overwrite);
    ek::scaled_weight_standardization(ek::serial, initial, gain, expected, saved, {.eps_added = true});
    ek::scaled_weight_standardization_backward(ek::serial, dy, initial, gain, saved, dw, dgain, overwrite);
    CHECK(same(y, expected));
    CHECK(std::equal(dw.data(), dw.data() + 216, scaled.weight().gradient()));
    CHECK(std::equal(dgain.data(), dgain.data() + 6, scaled.gain().gradient()));
  }
  std::vector<std::string> names;
  std::vector<bool> decays;
  scaled.for_each_parameter([&](ek::ParameterRef<float> p) {
    names.emplace_back(p.name);
    decays.push_back(p.weight_decay);
  });
  CHECK(names == std::vector<std::string>{"weight", "gain"});
  CHECK(decays == std::vector<bool>{true, false});
  Eigen::Tensor<float, 4> other(6, 4, 3, 2);
  CHECK(error_of([&] { scaled.fold(ek::serial, other); }) ==
        "ScaledWeightStandardization::materialize: w_hat is 6x4x3x2, the weight is 6x4x3x3");
}
