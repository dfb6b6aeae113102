// layer_norm with every place of its rows, every set of parameters and every kind of tensor.
#include "cuda/row_norm_checks.hpp"
#include "evenkeel/tensor.hpp"

#include <functional>
#include <string>

using namespace cuda_test;

namespace {

using T = float;
using Parameter = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
template <int Order>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order>;
template <int Order>
using StridedMap = Eigen::Map<Matrix<Order>, 0, Eigen::OuterStride<>>;
using Saved = ek::LayerNormSaved<T, ek::CudaStorage>;

double error_of(const char* name, const Values& got, const Results& expected) {
  for (const Result& result : expected)
    if (std::string(result.name) == name) return worst_error<T, T>({name, got}, result);
  return INFINITY;
}

// Forward and backward on tensors of any kind, whose rows lie at `place` in the memory of `t`.
template <class X>
void check_kind(const char* kind, const Placement& place, ek::Axes axis, const std::function<X(T*)>& at) {
  const RowData data = row_data<T, T>(place);
  INFO(kind << ": " << (describe<LayerNorm, T, T>(place, data)));
  RowTensors<T, T> t(data, place);
  const auto of = [&](const DeviceTensor<T>& tensor) { return at(tensor.view().data); };
  const ek::CudaStream device(nullptr, small);
  Saved saved;
  saved.reserve(device, of(t.x), axis);
  X y = of(t.y), dx = of(t.dx);
  ek::layer_norm(device, of(t.x), t.weight.map(), t.bias.map(), y, saved, {.axis = axis});
  ek::layer_norm_backward(device, of(t.dy), of(t.x), t.weight.map(), saved, dx, t.dweight.map(), t.dbias.map(),
                          ek::GradientMode::overwrite);
  const Results expected = LayerNorm::expected(data, {}), got = LayerNorm::results(t);
  for (std::size_t k = 0; k < got.size(); ++k) {
    INFO(expected[k].name);
    CHECK((worst_error<T, T>(got[k], expected[k])) <= 1);
  }
  CHECK(t.y.gaps_untouched());
  CHECK(t.dx.gaps_untouched());
}

// Any of the parameters and gradients may be missing.
template <class W, class B, class Dw, class Db>
void check_parameters(const W& weight, const B& bias, const Dw& dweight, const Db& dbias, Index length) {
  constexpr bool has_weight = !ek::is_none_v<W>, has_bias = !ek::is_none_v<B>, weight_gradient = !ek::is_none_v<Dw>,
                 bias_gradient = !ek::is_none_v<Db>;
  const Placement place = packed(5, length);
  RowData data = row_data<T, T>(place);
  INFO("weight " << has_weight << ", bias " << has_bias << ", dweight " << weight_gradient << ", dbias "
                 << bias_gradient << ", length " << length);
  RowTensors<T, T> t(data, place);
  const ek::CudaStream device(nullptr, small);
  const auto pick = [](const auto& wanted, const DeviceArray<T>& array) {
    if constexpr (ek::is_none_v<decltype(wanted)>)
      return ek::none;
    else
      return array.map();
  };
  const auto w = pick(weight, t.weight);
  const auto b = pick(bias, t.bias);
  auto dw = pick(dweight, t.dweight);
  auto db = pick(dbias, t.dbias);
  ek::layer_norm(device, t.x.view(), w, b, t.y.view(), ek::none);  // for inference
  const Values without_saved = t.y.values();
  Saved saved;
  saved.reserve(device, t.x.view());
  t.y.poison();
  ek::layer_norm(device, t.x.view(), w, b, t.y.view(), saved);
  CHECK(same_bits(t.y.values(), without_saved));
  ek::layer_norm_backward(device, t.dy.view(), t.x.view(), w, saved, t.dx.view(), dw, db, ek::GradientMode::overwrite);
  if (!has_weight) data.weight.clear();
  if (!has_bias) data.bias.clear();
  const Results expected = LayerNorm::expected(data, {});
  CHECK(error_of("y", t.y.values(), expected) <= 1);
  CHECK(error_of("dx", t.dx.values(), expected) <= 1);
  if (weight_gradient) CHECK(error_of("dweight", t.dweight.values(), expected) <= 1);
  if (bias_gradient) CHECK(error_of("dbias", t.dbias.values(), expected) <= 1);
  CHECK(t.dweight.untouched() == !weight_gradient);
  CHECK(t.dbias.untouched() == !bias_gradient);
}

}  // namespace

TEST_CASE("layer_norm: every place of rows in every order", "[cuda]") {
  std::size_t turn = 0;
  for (const Index length : kernel_widths)
    for (const Order order : orders) {
      use_order(order);
      for (const Placement& place : placements(length, 1 + length % 2)) {
        // The slow build takes the places in turn: each of them with some width, and each width with some of them.
        if (build == Build::address && turn++ % 3 != 0) continue;
        if (length > 8000 && turn++ % 4 != 0) continue;
        check_case<LayerNorm, T, T>(place);
        if (place.stride > 1) check_in_place<LayerNorm, T, T>(place);
      }
    }
}

TEST_CASE("layer_norm: rows that lie across", "[cuda]") { check_across<LayerNorm, T, T>({7, 96}, 40); }

TEST_CASE("layer_norm: a device without clusters", "[cuda]") {
  use_order(Order::random);
  for (const Index length : {4096, 8200, 16384}) check_case<LayerNorm, T, T>(packed(3, length), {}, without_clusters);
}

TEST_CASE("layer_norm: as many blocks as a real device has", "[cuda]") {
  use_order(Order::random);
  for (const Index length : {96, 1027}) check_case<LayerNorm, T, T>(packed(40, length), {}, ek::CudaFacts{});
}

TEST_CASE("layer_norm: maps and tensors", "[cuda]") {
  use_order(Order::skew);
  const Index rows = 6;
  for (const Index length : {33, 96, 768}) {
    using Rows = StridedMap<Eigen::RowMajor>;
    using Columns = StridedMap<Eigen::ColMajor>;
    using Packed = Eigen::Map<Matrix<Eigen::RowMajor>>;
    check_kind<Packed>("map", packed(rows, length), {}, [&](T* p) { return Packed(p, rows, length); });
    check_kind<Rows>("map with a stride", odd_pitch(rows, length), {},
                     [&](T* p) { return Rows(p, rows, length, Eigen::OuterStride<>(length + 1 + length % 2 * 3)); });
    check_kind<Columns>("column-major map", column_major(rows, length), 1,
                        [&](T* p) { return Columns(p, rows, length, Eigen::OuterStride<>(rows)); });
    check_kind<Columns>("features along the columns of a column-major map", packed(rows, length), 0,
                        [&](T* p) { return Columns(p, length, rows, Eigen::OuterStride<>(length)); });
    using Tensor = Eigen::TensorMap<Eigen::Tensor<T, 3, Eigen::RowMajor>>;
    check_kind<Tensor>("tensor, N, C, space", channels(2, length, 3), 1, [&](T* p) { return Tensor(p, 2, length, 3); });
    check_kind<Tensor>("tensor", packed(rows, length), {}, [&](T* p) { return Tensor(p, 2, 3, length); });
  }
}

TEST_CASE("layer_norm: parameters that are missing", "[cuda]") {
  use_order(Order::reverse);
  const int there = 0;
  for (const Index length : {33, 768, 1027}) {
    check_parameters(ek::none, ek::none, ek::none, ek::none, length);
    check_parameters(there, ek::none, there, ek::none, length);
    check_parameters(ek::none, there, ek::none, there, length);
    check_parameters(there, there, ek::none, ek::none, length);
    check_parameters(there, there, ek::none, there, length);
  }
}

// Also where the first elements, from which the sums start, lie far from the mean: the second look starts from there.
TEST_CASE("layer_norm: saved holds each row's statistics", "[cuda]") {
  use_order(Order::random);
  for (const Index length : kernel_widths)
    for (const Placement& place : {packed(5, length), heads(3, 2, length), column_major(length > 300 ? 3 : 9, length)})
      for (const bool far : {false, true}) {
        RowData data = row_data<T, T>(place);
        for (Index r = 0; far && r < data.rows; ++r)
          for (Index i = 0; i < 4; ++i) data.x[std::size_t(r * length + i)] = 1000;
        INFO((describe<LayerNorm, T, T>(place, data)) << ", far " << far);
        RowTensors<T, T> t(data, place);
        Saved saved;
        const ek::CudaStream device(nullptr, small);
        saved.reserve(device, t.x.view());
        LayerNorm::forward(device, t, t.y, saved, {});
        const auto rows = std::size_t(place.rows());
        std::vector<T> fields(3 * rows);  // the mean, what its rounding left, rstd
        cudaMemcpyAsync(fields.data(), saved.statistics.data(), 3 * rows * sizeof(T), cudaMemcpyDeviceToHost, nullptr);
        const auto f = reference::layer_norm(data.slab(), data.x, {}, {}, {1e-5, false, {}});
        const double bound = support::tolerance(std::size_t(length), 1, double(std::numeric_limits<T>::epsilon()));
        for (std::size_t r = 0; r < rows; ++r) {
          CHECK(std::abs(double(fields[r]) - f.mean[r]) <= bound * (std::abs(f.mean[r]) + 1 / f.rstd[r]));
          CHECK(std::abs(double(fields[2 * rows + r]) / f.rstd[r] - 1) <= bound);
        }
      }
}

TEST_CASE("layer_norm: shapes that do not belong together throw and write nothing", "[cuda]") {
  const Placement place = packed(6, 33);
  const RowData data = row_data<T, T>(place);
  RowTensors<T, T> t(data, place);
  const ek::CudaStream device(nullptr, small);
  Saved saved;
  saved.reserve(device, t.x.view());
  const Parameter short_one(t.weight.data(), 32);
  CHECK_THROWS_AS(ek::layer_norm(device, t.x.view(), short_one, t.bias.map(), t.y.view(), saved), ek::ShapeError);
  CHECK_THROWS_AS(ek::layer_norm(device, t.x.view(), t.weight.map(), short_one, t.y.view(), saved), ek::ShapeError);
  CHECK_THROWS_AS(ek::layer_norm(device, t.x.view(), t.weight.map(), t.bias.map(), t.y.view(), saved, {.eps = -1}),
                  ek::ShapeError);
  CHECK(t.y.untouched());
  ek::layer_norm(device, t.x.view(), t.weight.map(), t.bias.map(), t.y.view(), saved);
  auto dw = t.dweight.map(), db = t.dbias.map();
  CHECK_THROWS_AS(ek::layer_norm_backward(device, t.dy.view(), t.x.view(), short_one, saved, t.dx.view(), dw, db),
                  ek::ShapeError);
  CHECK_THROWS_AS(ek::layer_norm_backward(device, t.dy.view(), t.x.view(), t.weight.map(), saved, t.dx.view(),
                                          Parameter(t.dweight.data(), 32), db),
                  ek::ShapeError);
  CHECK(t.dx.untouched());
  CHECK(t.dweight.untouched());
  CHECK(t.dbias.untouched());
}
