// Gradients of both row norms, all of them wanted or some.
#include "cases/row_run.hpp"
#include "cases/table.hpp"

#include <cmath>

using namespace cases_test;
using norms_test::vector_of;

namespace {

// Gradients are written over garbage, the same each time, also where only some of them are wanted.
void check_written_gradients(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    RowCase row = row_case(c);
    row.weight.assign(std::size_t(row.length), 1);
    const Values nothing(row.x.size(), 0);
    for (const RowResult& result : run_everywhere<T, RmsNormUnderTest>(row)) {
      CHECK(difference(result.dweight, c.values("/expected/rms_dgamma"), {}) == "");
      expect(c, type, "dx", result.dx, Values(row.x.size(), c.number("/expected/rms_dx")));
    }
    RowCase layer = row;
    layer.bias.assign(std::size_t(row.length), 0);
    for (const RowResult& result : run_everywhere<T, LayerNormUnderTest>(layer)) {
      CHECK(difference(result.dweight, c.values("/expected/ln_dgamma"), {}) == "");
      CHECK(difference(result.dbias, c.values("/expected/ln_dbeta"), {}) == "");
      CHECK(difference(result.dx, Values(row.x.size(), c.number("/expected/ln_dx")), {}) == "");
    }

    Memory<T> x(row, Arrangement::along, row.x), dy(row, Arrangement::along, row.dy), y(row, Arrangement::along);
    const auto weight = vector_of<T>(row.weight), bias = vector_of<T>(layer.bias);
    ek::LayerNormSaved<ek::accumulator_t<T>> saved;
    ek::RmsNormSaved<ek::accumulator_t<T>> rms_saved;
    ek::layer_norm(ek::serial, x.map(), weight, bias, y.map(), saved, options_of<LayerNormUnderTest>(layer));
    ek::rms_norm(ek::serial, x.map(), weight, y.map(), rms_saved, options_of<RmsNormUnderTest>(row));
    constexpr auto overwrite = ek::GradientMode::overwrite;
    for (int repetition = 0; repetition < 10; ++repetition) {
      const auto garbage = [&] { return vector_of<T>(Values(std::size_t(row.length), NAN)); };
      auto dweight = garbage(), dbias = garbage(), rms_dweight = garbage();
      Memory<T> all(row, Arrangement::along), some(row, Arrangement::along), only(row, Arrangement::along),
          rms_all(row, Arrangement::along), rms_only(row, Arrangement::along);
      const auto none = ek::none;
      ek::layer_norm_backward(ek::serial, dy.map(), x.map(), weight, saved, all.map(), dweight, none, overwrite);
      ek::layer_norm_backward(ek::serial, dy.map(), x.map(), weight, saved, some.map(), none, dbias, overwrite);
      ek::layer_norm_backward(ek::serial, dy.map(), x.map(), weight, saved, only.map(), none, none, overwrite);
      ek::rms_norm_backward(ek::serial, dy.map(), x.map(), weight, rms_saved, rms_all.map(), rms_dweight, overwrite);
      ek::rms_norm_backward(ek::serial, dy.map(), x.map(), weight, rms_saved, rms_only.map(), none, overwrite);
      CHECK(difference(norms_test::values_of(dweight), c.values("/expected/ln_dgamma"), {}) == "");
      CHECK(difference(norms_test::values_of(dbias), c.values("/expected/ln_dbeta"), {}) == "");
      CHECK(difference(norms_test::values_of(rms_dweight), c.values("/expected/rms_dgamma"), {}) == "");
      for (Memory<T>* dx : {&all, &some, &only}) CHECK(difference(dx->values(), nothing, {}) == "");
      expect(c, type, "dx", rms_all.values(), Values(row.x.size(), c.number("/expected/rms_dx")));
      CHECK(bit_difference(rms_only.values(), rms_all.values()) == "");
    }
  });
}

}  // namespace

void cases_test::add_gradient_cases(Table& table) {
  table["rms_norm.backward, layer_norm.backward"] = check_written_gradients;
}
