// One forward and backward of a row norm over the numbers of a case, on any device and in several arrangements of
// memory, with every output full of NaN before.
#pragma once

#include "cases/case.hpp"
#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cases_test {

namespace ek = evenkeel;
using norms_test::LayerNormUnderTest;
using norms_test::RmsNormUnderTest;

struct RowCase {
  Eigen::Index rows = 0, length = 0;
  Values x, dy, weight, bias;  // dy, weight and bias may be empty: no backward, no parameter
  double eps = 0;
  bool unit_offset = false;
  ek::Rounding rounding = ek::Rounding::round_once;
};

struct RowResult {
  Values y, dx, dweight, dbias, mean, rstd;  // mean and rstd as the forward saves them
};

// Where the rows lie. `odd` starts every tensor one element off, so 2-byte rows of odd length are aligned to 2 at most.
enum class Arrangement { along, odd, across };
inline constexpr Arrangement arrangements[] = {Arrangement::along, Arrangement::odd, Arrangement::across};

// A matrix in memory of its own, rows x length, in either storage order.
template <class T>
class Memory {
 public:
  using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  using Map = Eigen::Map<norms_test::RowMatrix<T>, Eigen::Unaligned, Strides>;

  Memory(const RowCase& c, Arrangement arrangement)
      : rows_(c.rows),
        length_(c.length),
        across_(arrangement == Arrangement::across),
        first_(arrangement == Arrangement::odd ? 1 : 0),
        memory_(std::size_t((across_ ? pitch() : rows_) * length_ + first_), std::numeric_limits<T>::quiet_NaN()) {}
  Memory(const RowCase& c, Arrangement arrangement, const Values& values) : Memory(c, arrangement) {
    Map m = map();
    for (Eigen::Index r = 0; r < rows_; ++r)
      for (Eigen::Index i = 0; i < length_; ++i) m(r, i) = static_cast<T>(values.at(std::size_t(r * length_ + i)));
  }

  Map map() {
    const Strides strides = across_ ? Strides(1, pitch()) : Strides(length_, 1);
    return Map(memory_.data() + first_, rows_, length_, strides);  // (rows, length)
  }
  Values values() {
    Values v;
    const Map m = map();
    for (Eigen::Index r = 0; r < rows_; ++r)
      for (Eigen::Index i = 0; i < length_; ++i) v.push_back(static_cast<double>(m(r, i)));
    return v;
  }

 private:
  // At least 2, or the elements of a row that is alone would be neighbours, and its arrangement another one.
  Eigen::Index pitch() const { return std::max<Eigen::Index>(rows_, 2); }

  Eigen::Index rows_, length_;
  bool across_;
  Eigen::Index first_;
  std::vector<T> memory_;
};

template <class Norm>
typename Norm::Options options_of(const RowCase& c) {
  typename Norm::Options options;
  options.eps = c.eps;
  options.axis = 1;
  options.unit_offset = c.unit_offset;
  options.rounding = c.rounding;
  return options;
}

// Compiled once for each T, in row_run_layer_norm.cpp and row_run_rms_norm.cpp.
template <class T, class Norm, class Device>
RowResult run(const Device& device, const RowCase& c, Arrangement arrangement = Arrangement::along);

inline void check_same_bits(const RowResult& got, const RowResult& expected) {
  CHECK(bit_difference(got.y, expected.y) == "");
  CHECK(bit_difference(got.dx, expected.dx) == "");
  CHECK(bit_difference(got.dweight, expected.dweight) == "");
  CHECK(bit_difference(got.dbias, expected.dbias) == "");
}

inline Values part(const Values& values, Eigen::Index first, Eigen::Index count) {
  if (values.empty()) return {};
  return Values(values.begin() + first, values.begin() + first + count);
}

// What holds for every case, in every arrangement: the same bits in ten runs, on every number of threads, at every
// alignment, and for a row that is alone. Returns the results, one for each arrangement.
template <class T, class Norm>
std::vector<RowResult> run_everywhere(const RowCase& c) {
  std::vector<RowResult> results;
  const int repetitions = c.rows * c.length > 10000 ? 1 : 10;
  for (const Arrangement arrangement : arrangements) {
    INFO("arrangement " << int(arrangement));
    const RowResult result = run<T, Norm>(ek::serial, c, arrangement);
    for (int repetition = 1; repetition < repetitions; ++repetition)
      check_same_bits(run<T, Norm>(ek::serial, c, arrangement), result);
    for (const int threads : support::thread_counts) {
      INFO(threads << " threads");
      check_same_bits(run<T, Norm>(support::ThreadPool(threads).device(), c, arrangement), result);
    }
    if (arrangement == Arrangement::odd) {
      INFO("not aligned");
      check_same_bits(result, results.front());
    }
    for (const Eigen::Index row : {Eigen::Index(0), c.rows / 2, c.rows - 1}) {
      if (c.rows < 2) break;
      INFO("row " << row << " alone");
      RowCase alone = c;
      alone.rows = 1;
      alone.x = part(c.x, row * c.length, c.length);
      alone.dy = part(c.dy, row * c.length, c.length);
      const RowResult single = run<T, Norm>(ek::serial, alone, arrangement);
      CHECK(bit_difference(single.y, part(result.y, row * c.length, c.length)) == "");
      CHECK(bit_difference(single.dx, part(result.dx, row * c.length, c.length)) == "");
    }
    results.push_back(result);
  }
  return results;
}

inline void expect(const Case& c, const std::string& type, const std::string& name, const Values& got,
                   const Values& expected) {
  INFO(name << " in " << type);
  CHECK(difference(got, expected, c.limit(type, name)) == "");
}

// The numbers of a case in the form that most have: x, dy, gamma, beta, eps, and statistics over the last axes, as many
// as normalized_shape has.
inline RowCase row_case(const Case& c, const std::string& x_pointer = "/inputs/x") {
  RowCase row;
  const Tensor x = c.tensor(x_pointer);
  row.x = x.values;
  if (c.has("/inputs/dy")) row.dy = c.values("/inputs/dy");
  if (c.has("/params/gamma")) row.weight = c.values("/params/gamma");
  if (c.has("/params/beta"))
    row.bias = c.values("/params/beta");
  else if (c.has("/expected/dbeta"))
    row.bias.assign(row.weight.size(), 0);
  row.eps = c.is_null("/params/eps") ? ek::machine_epsilon : c.number("/params/eps");
  const std::size_t axes = c.has("/params/normalized_shape") ? c.size("/params/normalized_shape") : 1;
  row.length = 1;
  for (std::size_t a = x.shape.size() - axes; a < x.shape.size(); ++a) row.length *= x.shape[a];
  row.rows = 1;
  for (std::size_t a = 0; a + axes < x.shape.size(); ++a) row.rows *= x.shape[a];
  if (c.has("/params/normalized_shape")) {
    Values last;
    for (std::size_t a = x.shape.size() - axes; a < x.shape.size(); ++a) last.push_back(double(x.shape[a]));
    CHECK(difference(c.values("/params/normalized_shape"), last, {}) == "");
  }
  return row;
}

// The results that a case lists under their usual names.
inline void expect_listed(const Case& c, const std::string& type, const RowResult& result) {
  const auto listed = [&](const char* name, const Values& got) {
    const std::string pointer = std::string("/expected/") + name;
    if (!c.has(pointer)) return;
    const Values expected = c.values(pointer);
    if (std::string_view(name) == "y" || !c.y_only(type)) expect(c, type, name, got, expected);
  };
  listed("y", result.y);
  listed("dx", result.dx);
  listed("dgamma", result.dweight);
  listed("dbeta", result.dbias);
}

}  // namespace cases_test
