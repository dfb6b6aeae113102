// The residual sum fused with the norm of it: sum = x + residual, y = norm(sum), and back with what flows into the sum.
#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"
#include "support/gradient_check.hpp"
#include "support/shapes.hpp"

using namespace norms_test;

namespace {

struct AddRmsNorm : RmsNormUnderTest {
  template <class Device, class X, class W, class B, class Sum, class Y, class S>
  static void add_forward(const Device& device, const X& x, const X& residual, const W& weight, const B&, Sum&& sum,
                          Y&& y, S&& saved, const Options& options) {
    ek::add_rms_norm(device, x, residual, weight, sum, y, saved, options);
  }
  template <class Device, class DY, class DSum, class X, class W, class S, class DX, class DW, class DB>
  static void add_backward(const Device& device, const DY& dy, const DSum& dsum, const X& sum, const W& weight,
                           S& saved, DX&& dx, DW&& dweight, DB&&,
                           ek::GradientMode mode = ek::GradientMode::accumulate) {
    ek::add_rms_norm_backward(device, dy, dsum, sum, weight, saved, dx, dweight, mode);
  }
};

struct AddLayerNorm : LayerNormUnderTest {
  template <class Device, class X, class W, class B, class Sum, class Y, class S>
  static void add_forward(const Device& device, const X& x, const X& residual, const W& weight, const B& bias,
                          Sum&& sum, Y&& y, S&& saved, const Options& options) {
    ek::add_layer_norm(device, x, residual, weight, bias, sum, y, saved, options);
  }
  template <class Device, class DY, class DSum, class X, class W, class S, class DX, class DW, class DB>
  static void add_backward(const Device& device, const DY& dy, const DSum& dsum, const X& sum, const W& weight,
                           S& saved, DX&& dx, DW&& dweight, DB&& dbias,
                           ek::GradientMode mode = ek::GradientMode::accumulate) {
    ek::add_layer_norm_backward(device, dy, dsum, sum, weight, saved, dx, dweight, dbias, mode);
  }
};

template <class T>
struct Tensors {
  Data data;
  Values residual_values, dsum_values;
  RowMatrix<T> x, residual, dy, dsum, sum, y, dx;
  Vector<T> weight, bias, dweight, dbias;

  Tensors(std::size_t rows, std::size_t length)
      : data(make_data<T>({rows, length, 1}, rows + 3 * length)),
        residual_values(support::normal<T>(rows * length, 71, -0.5)),
        dsum_values(support::normal<T>(rows * length, 72)),
        x(matrix_of<RowMatrix<T>>(rows, length, data.x)),
        residual(matrix_of<RowMatrix<T>>(rows, length, residual_values)),
        dy(matrix_of<RowMatrix<T>>(rows, length, data.dy)),
        dsum(matrix_of<RowMatrix<T>>(rows, length, dsum_values)),
        sum(RowMatrix<T>::Constant(ek::Index(rows), ek::Index(length), nan_of<T>())),
        y(sum),
        dx(sum),
        weight(vector_of<T>(data.weight)),
        bias(vector_of<T>(data.bias)),
        dweight(Vector<T>::Constant(ek::Index(length), nan_of<T>())),
        dbias(dweight) {}
};

// The fused call has to give the bits of the two calls that it replaces, so everything proved for them holds for it.
template <class Norm>
void check_equals_parts() {
  using T = float;
  for (const auto& [rows, length] : support::awkward_shapes()) {
    INFO(rows << " x " << length);
    Tensors<T> t(rows, length);
    typename Norm::template Saved<T> saved, parts_saved;
    Norm::add_forward(ek::serial, t.x, t.residual, t.weight, t.bias, t.sum, t.y, saved, {});
    const RowMatrix<T> sum = t.x + t.residual;
    RowMatrix<T> y(sum.rows(), sum.cols()), dx(sum.rows(), sum.cols());
    Vector<T> no_bias = Vector<T>::Zero(t.bias.size());
    Norm::forward(ek::serial, sum, t.weight, Norm::centred ? t.bias : no_bias, y, parts_saved, {});
    CHECK((t.sum.array() == sum.array()).all());
    CHECK((t.y.array() == y.array()).all());

    Vector<T> dweight = t.dweight, dbias = t.dbias;
    constexpr auto overwrite = ek::GradientMode::overwrite;
    Norm::add_backward(ek::serial, t.dy, ek::none, t.sum, t.weight, saved, t.dx, t.dweight, t.dbias, overwrite);
    Norm::backward(ek::serial, t.dy, sum, t.weight, parts_saved, dx, dweight, dbias, overwrite);
    CHECK((t.dx.array() == dx.array()).all());
    CHECK((t.dweight == dweight).all());
    if (Norm::centred) CHECK((t.dbias == dbias).all());

    Norm::add_backward(ek::serial, t.dy, t.dsum, t.sum, t.weight, saved, t.dx, t.dweight, t.dbias, overwrite);
    // One rounding, whether the sum is contracted into a fused multiply-add or not.
    const RowMatrix<T> expected = dx + t.dsum, size = dx.cwiseAbs() + t.dsum.cwiseAbs();
    CHECK(((t.dx - expected).array().abs() <= 8 * T(epsilon_of<T>()) * (size.array() + size.maxCoeff())).all());
    CHECK((t.dweight == dweight).all());
  }
}

// Losses of both outputs at once: sum(y * dy) + sum(sum * dsum).
template <class Norm>
void check_gradients() {
  const std::size_t rows = 3, length = 6;
  Tensors<double> t(rows, length);
  const typename Norm::Options options{.eps = 1e-2};
  const auto loss = [&](const Values& x, const Values& residual, const Values& weight, const Values& bias) {
    RowMatrix<double> sum(rows, length), y(rows, length);
    Norm::add_forward(ek::serial, matrix_of<RowMatrix<double>>(rows, length, x),
                      matrix_of<RowMatrix<double>>(rows, length, residual), vector_of<double>(weight),
                      vector_of<double>(bias), sum, y, ek::none, options);
    return support::weighted_sum(values_of(y), t.data.dy) + support::weighted_sum(values_of(sum), t.dsum_values);
  };
  typename Norm::template Saved<double> saved;
  t.dweight.setZero();
  t.dbias.setZero();
  Norm::add_forward(ek::serial, t.x, t.residual, t.weight, t.bias, t.sum, t.y, saved, options);
  Norm::add_backward(ek::serial, t.dy, t.dsum, t.sum, t.weight, saved, t.dx, t.dweight, t.dbias);
  using support::central_differences, support::gradient_distance, support::gradient_tolerance;
  const Data& d = t.data;
  const Values by_x =
      central_differences([&](const Values& p) { return loss(p, t.residual_values, d.weight, d.bias); }, d.x);
  const Values by_residual =
      central_differences([&](const Values& p) { return loss(d.x, p, d.weight, d.bias); }, t.residual_values);
  const Values by_weight =
      central_differences([&](const Values& p) { return loss(d.x, t.residual_values, p, d.bias); }, d.weight);
  const Values by_bias =
      central_differences([&](const Values& p) { return loss(d.x, t.residual_values, d.weight, p); }, d.bias);
  CHECK(gradient_distance(values_of(t.dx), by_x) < gradient_tolerance);
  CHECK(gradient_distance(values_of(t.dx), by_residual) < gradient_tolerance);  // dr = dx = df
  CHECK(gradient_distance(values_of(t.dweight), by_weight) < gradient_tolerance);
  if (Norm::centred) CHECK(gradient_distance(values_of(t.dbias), by_bias) < gradient_tolerance);
}

template <class Norm>
void check_overlap() {
  Tensors<float> t(5, 33);
  typename Norm::template Saved<float> saved;
  CHECK_THROWS_AS(Norm::add_forward(ek::serial, t.x, t.residual, t.weight, t.bias, t.y, t.y, saved, {}),
                  ek::ShapeError);
  CHECK(t.y.array().isNaN().all());
  std::vector<float> memory(400, 1.0f);
  Eigen::Map<RowMatrix<float>> sum(memory.data(), 5, 33), y(memory.data() + 33, 5, 33);
  CHECK_THROWS_AS(Norm::add_forward(ek::serial, t.x, t.residual, t.weight, t.bias, sum, y, saved, {}), ek::ShapeError);
  const Eigen::Map<const RowMatrix<float>> x(memory.data() + 1, 5, 33), residual(memory.data() + 200, 5, 33);
  CHECK_THROWS_AS(Norm::add_forward(ek::serial, x, residual, t.weight, t.bias, sum, t.y, saved, {}), ek::ShapeError);
  CHECK_THROWS_AS(Norm::add_forward(ek::serial, residual, x, t.weight, t.bias, sum, t.y, saved, {}), ek::ShapeError);
  CHECK_THROWS_AS(Norm::add_forward(ek::serial, residual, x, t.weight, t.bias, t.sum, sum, saved, {}), ek::ShapeError);
  CHECK((memory == std::vector<float>(400, 1.0f)));
}

// sum may take the place of x or of the residual, dx that of dy or of dsum.
template <class Norm>
void check_in_place() {
  for (std::size_t length : Counts{1, 7, 16, 33, 77}) {
    INFO("length " << length);
    Tensors<float> t(5, length);
    typename Norm::template Saved<float> saved, again;
    Norm::add_forward(ek::serial, t.x, t.residual, t.weight, t.bias, t.sum, t.y, saved, {});
    RowMatrix<float> in_x = t.x, in_residual = t.residual, y(5, length);
    Norm::add_forward(ek::serial, in_x, t.residual, t.weight, t.bias, in_x, y, again, {});
    CHECK((in_x.array() == t.sum.array()).all());
    CHECK((y.array() == t.y.array()).all());
    Norm::add_forward(ek::serial, t.x, in_residual, t.weight, t.bias, in_residual, y, again, {});
    CHECK((in_residual.array() == t.sum.array()).all());
    CHECK((y.array() == t.y.array()).all());

    // The backward needs the sum alone, so after x has become the sum it still works.
    Norm::add_backward(ek::serial, t.dy, t.dsum, t.sum, t.weight, saved, t.dx, ek::none, ek::none);
    RowMatrix<float> in_dy = t.dy, in_dsum = t.dsum;
    Norm::add_backward(ek::serial, in_dy, t.dsum, in_residual, t.weight, again, in_dy, ek::none, ek::none);
    CHECK((in_dy.array() == t.dx.array()).all());
    Norm::add_backward(ek::serial, t.dy, in_dsum, in_residual, t.weight, again, in_dsum, ek::none, ek::none);
    CHECK((in_dsum.array() == t.dx.array()).all());
  }
}

template <class Norm>
void check_devices() {
  for (const auto& [rows, length] : {support::Shape{257, 77}, support::Shape{5, 768}}) {
    Tensors<float> t(rows, length);
    const auto run = [&](const auto& device) {
      typename Norm::template Saved<float> saved;
      t.dweight.setConstant(1);
      t.dbias.setConstant(2);
      Norm::add_forward(device, t.x, t.residual, t.weight, t.bias, t.sum, t.y, saved, {});
      Norm::add_backward(device, t.dy, t.dsum, t.sum, t.weight, saved, t.dx, t.dweight, t.dbias);
      return std::vector<Values>{values_of(t.sum), values_of(t.y), values_of(t.dx), values_of(t.dweight),
                                 values_of(t.dbias)};
    };
    const auto expected = run(ek::serial);
    support::for_each_device([&](const auto& device) { CHECK(run(device) == expected); });
  }
}

}  // namespace

TEMPLATE_TEST_CASE("add_norm equals the sum followed by the norm", "[norms][add_norm]", AddRmsNorm, AddLayerNorm) {
  check_equals_parts<TestType>();
}

TEMPLATE_TEST_CASE("add_norm's gradients equal central differences", "[norms][add_norm]", AddRmsNorm, AddLayerNorm) {
  check_gradients<TestType>();
}

TEMPLATE_TEST_CASE("add_norm in place gives the bits of out of place", "[norms][add_norm]", AddRmsNorm, AddLayerNorm) {
  check_in_place<TestType>();
}

TEMPLATE_TEST_CASE("add_norm refuses outputs that overlap", "[norms][add_norm]", AddRmsNorm, AddLayerNorm) {
  check_overlap<TestType>();
}

TEMPLATE_TEST_CASE("add_norm gives the same bits for every device and thread count", "[norms][add_norm]", AddRmsNorm,
                   AddLayerNorm) {
  check_devices<TestType>();
}
