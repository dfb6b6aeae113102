#include "cases/row_run.hpp"
#include "cases/table.hpp"

#include <Eigen/Core>

#include <bit>
#include <cstdint>

using namespace cases_test;
using norms_test::vector_of;

namespace {

using Norm = RmsNormUnderTest;
using Eigen::Index;

// A type may have inputs of its own (x_float32) and results of its own (y_float64, or y_float32_float16_bfloat16).
std::string for_type(const Case& c, const std::string& list, const std::string& name, const std::string& type) {
  for (const std::string& key : c.keys("/" + list))
    if (key.starts_with(name + "_") && key.find(type) != std::string::npos) return "/" + list + "/" + key;
  return "/" + list + "/" + name;
}

RowCase rms_case(const Case& c, const std::string& type) {
  RowCase row = row_case(c, for_type(c, "inputs", "x", type));
  if (c.has("/params/weight")) row.weight = c.values("/params/weight");
  row.unit_offset = c.has("/params/zero_centered");
  if (row.unit_offset) CHECK(c.boolean("/params/zero_centered"));
  return row;
}

void check_rms_norm(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    const RowCase row = rms_case(c, type);
    for (const RowResult& result : run_everywhere<T, Norm>(row)) {
      expect_listed(c, type, result);
      const std::string own = for_type(c, "expected", "y", type);
      if (own != "/expected/y") expect(c, type, "y", result.y, c.values(own));
      if (c.has("/expected/dw")) expect(c, type, "dw", result.dweight, c.values("/expected/dw"));
      if (!c.has("/expected/y_at_row")) continue;
      const Values columns = c.values("/expected/columns");
      CHECK(c.size("/expected/y_at_row") == std::size_t(row.rows));
      for (const std::string& r : c.keys("/expected/y_at_row")) {
        Values got;
        for (const double column : columns)
          got.push_back(result.y.at(std::stoul(r) * std::size_t(row.length) + std::size_t(column)));
        expect(c, type, "y", got, c.values("/expected/y_at_row/" + r));
      }
    }
  });
}

void check_forward(const Case& c) {
  check_rms_norm(c);
  // The range of bfloat16 is that of float, so what overflows there must be right in bfloat16 too.
  if (!c.has("/inputs/x_float32")) return;
  RowCase row = row_case(c, "/inputs/x_float32");
  const Limit bfloat16{0x1p-7, 0};
  for (const RowResult& result : run_everywhere<Eigen::bfloat16, Norm>(row)) {
    INFO("y in bfloat16");
    CHECK(difference(result.y, c.values("/expected/y"), bfloat16) == "");
  }
}

// dx in the memory of dy or of x gives the bits that it gives elsewhere.
void check_aliasing(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    const RowCase row = row_case(c);
    for (const Arrangement arrangement : arrangements) {
      const RowResult apart = run<T, Norm>(ek::serial, row, arrangement);
      expect_listed(c, type, apart);
      for (std::size_t i = 0; i < c.size("/params/alias"); ++i) {
        const std::string alias = c.text("/params/alias/" + std::to_string(i));
        INFO(alias);
        Memory<T> x(row, arrangement, row.x), dy(row, arrangement, row.dy), y(row, arrangement);
        const auto weight = vector_of<T>(row.weight);
        auto dweight = vector_of<T>(Values(row.weight.size(), NAN));
        ek::RmsNormSaved<ek::accumulator_t<T>> saved;
        ek::rms_norm(ek::serial, x.map(), weight, y.map(), saved, options_of<Norm>(row));
        CHECK((alias == "dx=dy" || alias == "dx=x"));
        Memory<T>& dx = alias == "dx=dy" ? dy : x;
        ek::rms_norm_backward(ek::serial, dy.map(), x.map(), weight, saved, dx.map(), dweight,
                              ek::GradientMode::overwrite);
        CHECK(bit_difference(dx.values(), apart.dx) == "");
        CHECK(bit_difference(norms_test::values_of(dweight), apart.dweight) == "");
      }
    }
  });
}

void check_bfloat16_bits(const Case& c, const Values& got, const std::string& pointer) {
  CHECK(c.size(pointer) == got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto bits = std::bit_cast<std::uint16_t>(static_cast<Eigen::bfloat16>(got[i]));
    CHECK(bits == std::stoul(c.text(pointer + "/" + std::to_string(i)), nullptr, 16));
  }
}

// The two rounding orders, bit for bit; the output is of the type of x, also where the weight is float.
void check_rounding_order(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    RowCase row = rms_case(c, type);
    for (const bool once : {true, false}) {
      const std::string name = once ? "round_once" : "round_twice";
      INFO(name);
      row.rounding = once ? ek::Rounding::round_once : ek::Rounding::round_normalized;
      for (const RowResult& result : run_everywhere<T, Norm>(row)) {
        expect(c, type, "y", result.y, c.values("/expected/" + name));
        check_bfloat16_bits(c, result.y, "/expected/" + name + "_bits");
      }
      Memory<T> x(row, Arrangement::along, row.x), y(row, Arrangement::along);
      ek::rms_norm(ek::serial, x.map(), vector_of<float>(row.weight), y.map(), ek::none, options_of<Norm>(row));
      check_bfloat16_bits(c, y.values(), "/expected/" + name + "_bits");
    }
  });
}

void check_unrounded_rstd(const Case& c) {
  check_rms_norm(c);
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    const RowResult result = run<T, Norm>(ek::serial, rms_case(c, type));
    check_bfloat16_bits(c, result.y, "/expected/y_bits");
    CHECK(difference(result.y, c.values("/expected/wrong_if_rstd_rounded"), {}) != "");
  });
}

}  // namespace

void cases_test::add_rms_norm_cases(Table& table) {
  table["rms_norm.forward"] = check_forward;
  table["rms_norm.backward"] = check_aliasing;
  table["rms_norm.forward / backward"] = check_rms_norm;
  table["rms_norm.forward (bfloat16 in, bfloat16 out)"] = check_rounding_order;
  table["rms_norm.forward (bfloat16)"] = check_unrounded_rstd;
}
