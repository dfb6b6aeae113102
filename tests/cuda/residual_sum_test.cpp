#include "cuda/row_norm_checks.hpp"

using namespace cuda_test;

// y = x + scale * f: two roundings in the accumulator type and one at the store.
TEMPLATE_LIST_TEST_CASE("residual_sum equals its formula", "[cuda]", DataScalars) {
  using T = typename TestType::T;
  using A = ek::accumulator_t<T>;
  std::size_t turn = 0;
  const A scale = A(0.3);
  for (const Index length : widths)
    for (const Placement& place : {packed(3, length), placements(length, turn)[1 + turn % 7]}) {
      use_order(orders[turn++ % orders.size()]);
      const RowData data = row_data<T, T>(place);
      INFO(place.name << ", " << place.rows() << " x " << length << ", scalars of " << sizeof(T) << " bytes");
      RowTensors<T, T> t(data, place);
      const ek::CudaStream device(nullptr, small);
      ek::residual_sum(device, t.x.view(), t.second.view(), t.y.view(), scale);
      Result expected{"y", data.x, data.x};
      for (std::size_t i = 0; i < data.x.size(); ++i) {
        const double added = double(scale) * data.second[i];
        expected.values[i] += added;
        expected.magnitude[i] = (std::abs(data.x[i]) + std::abs(added)) / 4;  // tolerance() allows 8 roundings
      }
      const Result got{"y", t.y.values()};
      CHECK((worst_error<T, T>(got, expected)) <= 1);
      CHECK(t.y.gaps_untouched());
      RowTensors<T, T> again(data, place);
      ek::residual_sum(ek::serial, t.x.view(), t.second.view(), again.y.view(), scale);
      CHECK((worst_error<T, T>(got, {"y", again.y.values(), expected.magnitude})) <= 1);
      ek::residual_sum(device, t.x.view(), t.second.view(), t.x.view(), scale);  // in place
      CHECK(same_bits(t.x.values(), got.values));
      ek::residual_sum(device, again.x.view(), again.second.view(), again.second.view(), scale);
      CHECK(same_bits(again.second.values(), got.values));
    }
}
