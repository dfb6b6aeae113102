// WeightNorm: a weight as a length and a direction.
#include "norms/weight_checks.hpp"

using namespace weights_test;

namespace {

constexpr auto overwrite = ek::GradientMode::overwrite;

template <class T, class X>
void check(const X& like, const ek::WeightNormOptions& options, const Slab& slab) {
  const Values v_values = support::normal<T>(slab.size(), slab.size(), 0.25, 1.5),
               dw_values = support::normal<T>(slab.size(), slab.size() + 1),
               g_values = support::normal<T>(slab.length, slab.size() + 2, 0.5);
  const X v = filled(like, v_values), dw = filled(like, dw_values);
  const auto g = vector_of<T>(g_values);
  X w = filled(like, Values(slab.size(), NAN)), dv = w;
  Vector<T> dg = Vector<T>::Constant(g.size(), nan_of<T>());
  ek::WeightNormSaved<ek::accumulator_t<T>> saved;
  ek::weight_norm(ek::serial, v, g, w, saved, options);
  ek::weight_norm_backward(ek::serial, dw, v, g, saved, dv, dg, overwrite);
  const auto d = reference::weight_norm_backward(slab, dw_values, v_values, g_values);
  CHECK(worst<T>(values_of(w), reference::weight_norm(slab, v_values, g_values), slab.rows()) <= 1);
  CHECK(worst<T>(values_of(dv), d.dweight, slab.rows()) <= 1);
  CHECK(worst<T>(values_of(dg), d.dgain, slab.rows()) <= 1);
  for (std::size_t unit = 0; unit < slab.length; ++unit) {
    double squares = 0;
    for (std::size_t r = 0; r < slab.rows(); ++r) squares += std::pow(v_values[slab.at(r, unit)], 2);
    // The norm is handed out in float for 16-bit weights.
    CHECK(double(saved.norm(ek::Index(unit))) == Approx(std::sqrt(squares)).epsilon(1e-6));
  }

  X direction = filled(like, Values(slab.size(), NAN)), again = direction;
  Vector<T> length = Vector<T>::Constant(g.size(), nan_of<T>());
  ek::weight_norm_split(ek::serial, v, direction, length, options);
  CHECK(values_of(direction) == v_values);
  ek::weight_norm(ek::serial, direction, length, again, saved, options);
  Weighed same{v_values, v_values};
  for (double& m : same.magnitude) m = std::abs(m) * own_epsilon<T>() / own_epsilon<double>();  // length is rounded
  CHECK(worst<T>(values_of(again), same, slab.rows()) <= 1);
}

RowMatrix<double> matrix(std::size_t rows, std::size_t cols, const Values& values) {
  return matrix_of<RowMatrix<double>>(rows, cols, values);
}

double distance(const RowMatrix<double>& got, const RowMatrix<double>& expected) {
  return (got - expected).cwiseAbs().maxCoeff();
}

}  // namespace

TEMPLATE_TEST_CASE("weight_norm equals the reference along every axis", "[norms][weight_norm]", SUPPORT_WIDE_SCALARS,
                   SUPPORT_SMALL_SCALARS) {
  for_each_weight<TestType>([](const auto& like, int axis, const Slab& slab) {
    check<TestType>(like, {.axis = axis}, slab);
    check<TestType>(like, {.axis = axis, .whole = true}, whole_of(slab));
  });
  check<TestType>(RowMatrix<TestType>(257, 1031), {}, {1, 257, 1031});
  check<TestType>(RowMatrix<TestType>(257, 1031), {.axis = 1}, {257, 1031, 1});
}

TEST_CASE("weight_norm keeps neighbouring axes together", "[norms][weight_norm]") {
  Eigen::Tensor<float, 4, Eigen::RowMajor> like(3, 4, 5, 2);
  check<float>(like, {.axis = {1, 2}}, {3, 20, 2});
}

TEST_CASE("weight_norm's known values", "[norms][weight_norm]") {
  const auto v = matrix(2, 3, {3, 4, 0, 1, 2, 2});
  RowMatrix<double> w(2, 3);
  ek::WeightNormSaved<double> saved;
  ek::weight_norm(ek::serial, v, vector_of<double>({10, 6}), w, saved);
  CHECK(distance(w, matrix(2, 3, {6, 8, 0, 2, 4, 4})) < 1e-14);
  CHECK(saved.norm(0) == 5);
  CHECK(saved.norm(1) == 3);
  ek::weight_norm(ek::serial, v, vector_of<double>({1, 2, 3}), w, saved, {.axis = 1});
  CHECK(distance(
            w, matrix(2, 3, {0.9486832980505138, 1.7888543819998317, 0, 0.31622776601683794, 0.8944271909999159, 3})) <
        1e-14);
  ek::weight_norm(ek::serial, v, vector_of<double>({2}), w, saved, {.whole = true});
  CHECK(saved.norm(0) == Approx(std::sqrt(34)).epsilon(1e-15));
  CHECK(distance(w, v * (2 / std::sqrt(34))) < 1e-14);

  const auto u = matrix(2, 3, {1, 2, -2, 4, 0, 3}), dw = matrix(2, 3, {1, -1, 2, .5, 1, -1});
  const auto g = vector_of<double>({1.5, -2});
  RowMatrix<double> dv(2, 3);
  Vector<double> dg(2);
  ek::weight_norm(ek::serial, u, g, w, saved);
  ek::weight_norm_backward(ek::serial, dw, u, g, saved, dv, dg, overwrite);
  CHECK(distance(w, matrix(2, 3, {.5, 1, -1, -1.6, 0, -1.2})) < 1e-14);
  CHECK(distance(dv, matrix(2, 3, {0.7777777777777778, 0.05555555555555555, 0.4444444444444444, -0.264, -0.4, 0.352})) <
        1e-14);
  CHECK(std::abs(dg(0) + 1.6666666666666667) < 1e-14);
  CHECK(std::abs(dg(1) + 0.2) < 1e-14);
}

TEST_CASE("weight_norm's gradients equal central differences", "[norms][weight_norm]") {
  const std::size_t rows = 4, cols = 5;
  for (const ek::WeightNormOptions& options :
       {ek::WeightNormOptions{}, ek::WeightNormOptions{.axis = 1}, ek::WeightNormOptions{.whole = true}}) {
    const std::size_t units = options.whole ? 1 : options.axis.axis[0] == 0 ? rows : cols;
    const Values v = support::normal<double>(rows * cols, 3, 0.25), g = support::normal<double>(units, 4, 0.5),
                 dw = support::normal<double>(rows * cols, 5);
    ek::WeightNormSaved<double> saved;
    const auto loss = [&](const Values& v_at, const Values& g_at) {
      RowMatrix<double> w(rows, cols);
      ek::weight_norm(ek::serial, matrix(rows, cols, v_at), vector_of<double>(g_at), w, saved, options);
      return support::weighted_sum(values_of(w), dw);
    };
    const Values by_v = support::central_differences([&](const Values& p) { return loss(p, g); }, v);
    const Values by_g = support::central_differences([&](const Values& p) { return loss(v, p); }, g);
    loss(v, g);
    RowMatrix<double> dv = RowMatrix<double>::Constant(rows, cols, 3);
    Vector<double> dg = Vector<double>::Constant(ek::Index(units), 5);
    const auto backward = [&](auto... mode) {
      ek::weight_norm_backward(ek::serial, matrix(rows, cols, dw), matrix(rows, cols, v), vector_of<double>(g), saved,
                               dv, dg, mode...);
    };
    backward(overwrite);
    CHECK(support::gradient_distance(values_of(dv), by_v) < support::gradient_tolerance);
    CHECK(support::gradient_distance(values_of(dg), by_g) < support::gradient_tolerance);
    // Both are gradients of parameters: the default adds to what is there.
    const RowMatrix<double> dv_once = dv;
    const Vector<double> dg_once = dg;
    backward();
    CHECK((dv - 2 * dv_once).cwiseAbs().maxCoeff() < 1e-14);
    CHECK((dg - 2 * dg_once).abs().maxCoeff() < 1e-14);
    ek::weight_norm_backward(ek::serial, matrix(rows, cols, dw), matrix(rows, cols, v), vector_of<double>(g), saved, dv,
                             ek::none, overwrite);
    CHECK(dv == dv_once);
  }
}

TEMPLATE_TEST_CASE("weight_norm does not see the scale of v, however huge or tiny", "[norms][weight_norm][hard]",
                   SUPPORT_WIDE_SCALARS) {
  const bool is_double = std::is_same_v<TestType, double>;
  for (bool whole : {false, true}) {
    const std::size_t rows = 6, cols = 37;
    const Slab slab = whole ? Slab{1, 1, rows * cols} : Slab{1, rows, cols};
    const Values v = support::normal<TestType>(rows * cols, 11), dw = support::normal<TestType>(rows * cols, 12);
    const Values g = support::normal<TestType>(slab.length, 13, 2, 0.1);
    // About 1e-36, 1e-30, 1e30, 1e36 and, for double, 1e-301, 1e-211, 1e211 and 1e306.
    for (int exponent : {-100, -120, 100, 120, -1000, -700, 700, 1018}) {
      if (!is_double && std::abs(exponent) > 120) continue;
      INFO("v times 2^" << exponent);
      Values scaled = v;
      for (double& x : scaled) x = double(TestType(std::ldexp(x, exponent)));  // 2^-120 costs some floats digits
      const auto m = matrix_of<RowMatrix<TestType>>(rows, cols, scaled);
      ColMatrix<TestType> across = m, w_across(rows, cols);
      RowMatrix<TestType> w(rows, cols), dv(rows, cols);
      Vector<TestType> dg(ek::Index(slab.length));
      ek::WeightNormSaved<TestType> saved;
      const ek::WeightNormOptions options{.axis = 0, .whole = whole};
      ek::weight_norm(ek::serial, across, vector_of<TestType>(g), w_across, saved, options);
      ek::weight_norm(ek::serial, m, vector_of<TestType>(g), w, saved, options);
      ek::weight_norm_backward(ek::serial, matrix_of<RowMatrix<TestType>>(rows, cols, dw), m, vector_of<TestType>(g),
                               saved, dv, dg, overwrite);
      const auto d = reference::weight_norm_backward(slab, dw, scaled, g);
      CHECK(worst<TestType>(values_of(w), reference::weight_norm(slab, scaled, g), cols) <= 1);
      CHECK((w - w_across).cwiseAbs().maxCoeff() <= TestType(4) * std::numeric_limits<TestType>::epsilon());
      CHECK(worst<TestType>(values_of(dg), d.dgain, cols) <= 1);
      if (std::abs(exponent) < 1000) CHECK(worst<TestType>(values_of(dv), d.dweight, cols) <= 1);
    }
  }
}

TEST_CASE("weight_norm of units of very different size", "[norms][weight_norm][hard]") {
  RowMatrix<double> v(4, 2), w(4, 2), turned_w(2, 4);
  v << 3e200, 4e200, 3e-200, 4e-200, 3, 4, 3e-320, 4e-320;
  ek::WeightNormSaved<double> saved;
  ek::weight_norm(ek::serial, v, vector_of<double>({1, 1, 1, 1}), w, saved);
  const RowMatrix<double> turned = v.transpose();  // packs over units
  ek::weight_norm(ek::serial, turned, vector_of<double>({1, 1, 1, 1}), turned_w, saved, {.axis = 1});
  for (ek::Index unit : {0, 1, 2, 3}) {
    const double slack = unit == 3 ? 1e-3 : 1e-15;  // 3e-320 has four digits
    CHECK(w(unit, 0) == Approx(0.6).epsilon(slack));
    CHECK(w(unit, 1) == Approx(0.8).epsilon(slack));
    CHECK(turned_w(0, unit) == Approx(0.6).epsilon(slack));
    CHECK(turned_w(1, unit) == Approx(0.8).epsilon(slack));
  }
  CHECK(saved.norm(0) == Approx(5e200).epsilon(1e-15));
  CHECK(saved.norm(1) == Approx(5e-200).epsilon(1e-15));
}

TEST_CASE("weight_norm of a zero direction is zero", "[norms][weight_norm]") {
  const auto v = matrix(3, 2, {1, 2, 0, 0, -3, 1}), dw = matrix(3, 2, {1, 1, 1, 1, 1, 1});
  RowMatrix<double> w(3, 2), dv(3, 2);
  Vector<double> dg(3);
  const auto g = vector_of<double>({2, 5, 3});
  ek::WeightNormSaved<double> saved;
  ek::weight_norm(ek::serial, v, g, w, saved);
  ek::weight_norm_backward(ek::serial, dw, v, g, saved, dv, dg, overwrite);
  CHECK(w.row(1).isZero(0));
  CHECK(dv.row(1).isZero(0));
  CHECK(dg(1) == 0);
  CHECK(saved.norm(1) == 0);
  CHECK(w.row(0).norm() == Approx(2).epsilon(1e-15));
  CHECK(dv.allFinite());

  RowMatrix<double> direction = RowMatrix<double>::Constant(3, 2, 77);
  Vector<double> length = Vector<double>::Constant(3, 77);
  CHECK(error_of([&] { ek::weight_norm_split(ek::serial, v, direction, length); }) ==
        "weight_norm_split: w has only zeros at index 1, expected a direction (w is 3x2, axis 0)");
  CHECK((direction.array() == 77).all());
  CHECK((length == 77).all());
  CHECK(error_of([&] { ek::WeightNorm<float>(RowMatrix<float>(RowMatrix<float>::Zero(2, 2))); }).find("WeightNorm:") ==
        0);
}

TEST_CASE("weight_norm of a NaN is no zero", "[norms][weight_norm]") {
  const auto v = matrix(2, 2, {1, NAN, 1, 2});
  RowMatrix<double> w(2, 2);
  ek::WeightNormSaved<double> saved;
  ek::weight_norm(ek::serial, v, vector_of<double>({1, 1}), w, saved);
  CHECK(w.row(0).array().isNaN().all());
  CHECK(w.row(1).allFinite());
}

TEMPLATE_TEST_CASE("weight_norm has the same bits on every device and number of threads", "[norms][weight_norm]",
                   SUPPORT_WIDE_SCALARS, Eigen::bfloat16) {
  using T = TestType;
  for (int axis : {0, 1}) {
    for (bool whole : {false, true}) {
      const ek::WeightNormOptions options{.axis = axis, .whole = whole};
      const std::size_t rows = 67, cols = 129, units = whole ? 1 : axis == 0 ? rows : cols;
      const auto v = matrix_of<RowMatrix<T>>(rows, cols, support::normal<T>(rows * cols, 21));
      const auto dw = matrix_of<RowMatrix<T>>(rows, cols, support::normal<T>(rows * cols, 22));
      const auto g = vector_of<T>(support::normal<T>(units, 23, 1));
      std::vector<Values> first;
      support::for_each_device([&](const auto& device) {
        RowMatrix<T> w(rows, cols), dv = dw;
        Vector<T> dg = g;
        ek::WeightNormSaved<ek::accumulator_t<T>> saved;
        ek::weight_norm(device, v, g, w, saved, options);
        ek::weight_norm_backward(device, dw, v, g, saved, dv, dg);
        const std::vector<Values> now{values_of(w), values_of(dv), values_of(dg)};
        if (first.empty()) first = now;
        CHECK(now == first);
      });
    }
  }
}

TEST_CASE("weight_norm takes parameters and gradients of other types", "[norms][weight_norm]") {
  const std::size_t rows = 9, cols = 20;
  const Slab slab{1, rows, cols};
  const Values v = support::normal<float>(rows * cols, 31), g = support::normal<Eigen::bfloat16>(rows, 32, 1),
               dw = support::normal<Eigen::half>(rows * cols, 33);
  const auto v_tensor = matrix_of<RowMatrix<float>>(rows, cols, v);
  RowMatrix<Eigen::half> w(rows, cols);
  RowMatrix<double> dv(rows, cols);
  Vector<float> dg{ek::Index(rows)};
  ek::WeightNormSaved<float> saved;
  ek::weight_norm(ek::serial, v_tensor, vector_of<Eigen::bfloat16>(g), w, saved);
  ek::weight_norm_backward(ek::serial, matrix_of<RowMatrix<Eigen::half>>(rows, cols, dw), v_tensor,
                           vector_of<Eigen::bfloat16>(g), saved, dv, dg, overwrite);
  const auto d = reference::weight_norm_backward(slab, dw, v, g);
  CHECK(worst<Eigen::half>(values_of(w), reference::weight_norm(slab, v, g), cols) <= 1);
  CHECK(worst<double>(values_of(dv), d.dweight, cols) <= 1);
  CHECK(worst<float>(values_of(dg), d.dgain, cols) <= 1);
}

TEST_CASE("weight_norm of blocks, mixed orders and views", "[norms][weight_norm]") {
  const std::size_t rows = 6, cols = 11;
  const Values values = support::normal<float>(rows * cols, 41), g_values = support::normal<float>(rows, 42, 1);
  const auto v = matrix_of<RowMatrix<float>>(rows, cols, values);
  const auto g = vector_of<float>(g_values);
  RowMatrix<float> expected(rows, cols), w(rows, cols);
  ek::WeightNormSaved<float> saved;
  const auto near = [&](const auto& got) { return (got - expected).cwiseAbs().maxCoeff() <= 2e-7f; };
  for (bool whole : {false, true}) {
    const ek::WeightNormOptions options{.whole = whole};
    const auto lengths = vector_of<float>(whole ? Values{2} : g_values);
    ek::weight_norm(ek::serial, v, lengths, expected, saved, options);
    RowMatrix<float> frame = RowMatrix<float>::Constant(9, 15, 77), out = frame;
    frame.block(1, 2, 6, 11) = v;
    ek::weight_norm(ek::serial, frame.block(1, 2, 6, 11), lengths, out.block(2, 1, 6, 11), saved, options);
    CHECK(near(out.block(2, 1, 6, 11)));
    out.block(2, 1, 6, 11).setConstant(77);
    CHECK((out.array() == 77).all());
    const ColMatrix<float> turned = v;
    ek::weight_norm(ek::serial, turned, lengths, w, saved, options);
    CHECK(near(w));
    w = v;
    ek::weight_norm(ek::serial, w, lengths, w, saved, options);
    CHECK(near(w));
    RowMatrix<float> dv(rows, cols);
    Vector<float> dg(lengths.size());
    CHECK(error_of([&] { ek::weight_norm_backward(ek::serial, v, w, lengths, saved, dv, dg); }).find("in-place") !=
          std::string::npos);
  }
  ek::weight_norm(ek::serial, v, g, expected, saved);
  const ek::AxisView<const float> view{.data = v.data(), .length = 6, .stride = 11, .inner = 11, .inner_stride = 1};
  ek::weight_norm(ek::serial, view, g,
                  ek::AxisView<float>{.data = w.data(), .length = 6, .stride = 11, .inner = 11, .inner_stride = 1},
                  saved);
  CHECK(near(w));
}

TEST_CASE("weight_norm refuses what does not fit", "[norms][weight_norm][errors]") {
  const auto v = matrix(2, 3, {3, 4, 0, 1, 2, 2});
  const auto two = vector_of<double>({1, 2}), three = vector_of<double>({1, 2, 3});
  RowMatrix<double> w = RowMatrix<double>::Constant(2, 3, 77), turned = RowMatrix<double>::Constant(3, 2, 77), dv = w;
  Vector<double> dg = Vector<double>::Constant(2, 77);
  ek::WeightNormSaved<double> saved;
  CHECK(error_of([&] { ek::weight_norm(ek::serial, v, two, w, saved, {.axis = 1}); }) ==
        "weight_norm: g has 2 values, v has 3 units (v is 2x3, axis 1)");
  CHECK(error_of([&] { ek::weight_norm(ek::serial, v, two, w, saved, {.whole = true}); }) ==
        "weight_norm: g has 2 values, v has 1 unit, the whole of it (v is 2x3, axis 0)");
  CHECK(error_of([&] { ek::weight_norm(ek::serial, v, two, turned, saved); }) ==
        "weight_norm: w is 3x2, v is 2x3, axis 0");
  CHECK(error_of([&] { ek::weight_norm(ek::serial, v, vector_of<double>({2}), turned, saved, {.whole = true}); }) ==
        "weight_norm: w is 3x2, v is 2x3, axis 0");
  CHECK(error_of([&] { ek::weight_norm(ek::serial, v, two, w, saved, {.axis = 2}); }).find("axis 2 is out of range") !=
        std::string::npos);
  const RowMatrix<double> empty(2, 0);
  RowMatrix<double> nothing(2, 0);
  CHECK(error_of([&] { ek::weight_norm(ek::serial, empty, two, nothing, saved); }).find("no values") !=
        std::string::npos);
  CHECK(error_of([&] { ek::weight_norm_split(ek::serial, v, w, dg, {.axis = 1}); }) ==
        "weight_norm_split: g has 2 values, w has 3 units (w is 2x3, axis 1)");
  Vector<double> one = Vector<double>::Ones(7);
  CHECK(error_of([&] {
          ek::weight_norm(ek::serial, v, Eigen::Map<Vector<double>>(one.data(), 1),
                          Eigen::Map<RowMatrix<double>>(one.data(), 2, 3), saved, {.whole = true});
        }).find("w overlaps g") != std::string::npos);

  CHECK(error_of([&] { ek::weight_norm_backward(ek::serial, v, v, two, saved, dv, dg); }).find("saved is empty") !=
        std::string::npos);
  RowMatrix<double> out(2, 3);
  ek::weight_norm(ek::serial, v, two, out, saved);
  CHECK(error_of([&] { ek::weight_norm_backward(ek::serial, turned, v, two, saved, dv, dg); }) ==
        "weight_norm_backward: dw is 3x2, v is 2x3, axis 0");
  CHECK(error_of([&] { ek::weight_norm_backward(ek::serial, v, v, three, saved, dv, dg); }) ==
        "weight_norm_backward: g has 3 values, v has 2 units (v is 2x3, axis 0)");
  Vector<double> long_dg = three;
  CHECK(error_of([&] { ek::weight_norm_backward(ek::serial, v, v, two, saved, dv, long_dg); }) ==
        "weight_norm_backward: dg has 3 values, v has 2 units (v is 2x3, axis 0)");
  CHECK(error_of([&] { ek::weight_norm_backward(ek::serial, turned, turned, three, saved, turned, long_dg); }) ==
        "weight_norm_backward: saved holds 2 units of 3 values, v is 3x2, axis 0");
  RowMatrix<double> dw = v;
  CHECK(error_of([&] { ek::weight_norm_backward(ek::serial, dw, v, two, saved, dw, dg); }).find("dv is dw") !=
        std::string::npos);
  CHECK((w.array() == 77).all());
  CHECK((turned.array() == 77).all());
  CHECK((dv.array() == 77).all());
  CHECK((dg == 77).all());
  CHECK((long_dg == three).all());
  // With overwrite, dv may be dw.
  ek::weight_norm_backward(ek::serial, v, v, two, saved, dv, dg, overwrite);
  ek::weight_norm_backward(ek::serial, dw, v, two, saved, dw, dg, overwrite);
  CHECK(dw == dv);
}

TEST_CASE("the layer WeightNorm starts with its weight and learns g and v", "[norms][weight_norm]") {
  const Values values = support::normal<float>(4 * 3 * 5, 51);
  for (bool whole : {false, true}) {
    Eigen::Tensor<float, 3, Eigen::RowMajor> initial(4, 3, 5), w(4, 3, 5), dw(4, 3, 5);
    fill(initial, values);
    fill(dw, support::normal<float>(60, 52));
    ek::WeightNorm<float> norm(initial, {.whole = whole});
    norm.materialize(Eigen::DefaultDevice{}, w);
    for (ek::Index i = 0; i < 60; ++i) CHECK(w.data()[i] == Approx(initial.data()[i]).epsilon(1e-6));

    std::vector<std::string> names;
    std::vector<bool> decays;
    std::vector<ek::Index> sizes;
    norm.for_each_parameter([&](ek::ParameterRef<float> p) {
      names.emplace_back(p.name);
      decays.push_back(p.weight_decay);
      sizes.push_back(p.size);
    });
    CHECK(names == std::vector<std::string>{"original0", "original1"});
    CHECK(decays == std::vector<bool>{false, true});
    CHECK(sizes == std::vector<ek::Index>{whole ? 1 : 4, 60});

    norm.backward(ek::serial, dw);
    norm.backward(ek::serial, dw);
    Vector<float> g = Eigen::Map<Vector<float>>(norm.g().value(), norm.g().size()), dg = g;
    Eigen::Tensor<float, 3, Eigen::RowMajor> dv(4, 3, 5);
    ek::WeightNormSaved<float> saved;
    ek::weight_norm(ek::serial, initial, g, w, saved, {.whole = whole});
    ek::weight_norm_backward(ek::serial, dw, initial, g, saved, dv, dg, overwrite);
    for (ek::Index i = 0; i < 60; ++i) CHECK(norm.v().gradient()[i] == 2 * dv.data()[i]);
    for (ek::Index i = 0; i < g.size(); ++i) CHECK(norm.g().gradient()[i] == 2 * dg(i));

    // g alone sets the length.
    norm.g().fill(7);
    norm.fold(ek::serial, w);
    double squares = 0;
    for (ek::Index i = 0; i < 15; ++i) squares += double(w.data()[i]) * double(w.data()[i]);
    if (!whole) CHECK(std::sqrt(squares) == Approx(7).epsilon(1e-6));

    RowMatrix<float> flat(4, 15);
    CHECK(error_of([&] { norm.materialize(ek::serial, flat); }) ==
          "WeightNorm::materialize: w is 4x15, the weight is 4x3x5");
    CHECK(error_of([&] { norm.backward(ek::serial, flat); }) ==
          "WeightNorm::backward: dw is 4x15, the weight is 4x3x5");
    Eigen::Tensor<float, 3> other_order(4, 3, 5);
    CHECK(error_of([&] { norm.materialize(ek::serial, other_order); }).find("storage orders") != std::string::npos);
  }
  // A weight of another type, and a column-major one along its second axis.
  const auto initial = matrix_of<ColMatrix<float>>(5, 6, support::normal<float>(30, 53));
  ek::WeightNorm<float> norm(initial, {.axis = -1});
  CHECK(norm.g().size() == 6);
  ColMatrix<Eigen::bfloat16> w(5, 6);
  norm.materialize(ek::serial, w);
  CHECK((w.cast<float>() - initial).cwiseAbs().maxCoeff() < 0.01f);  // 2^-9 of numbers under 3
}
