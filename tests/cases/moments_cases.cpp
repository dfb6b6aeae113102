#include "cases/table.hpp"
#include "evenkeel/moments.hpp"

#include <bit>
#include <cstdint>

using namespace cases_test;
namespace ek = evenkeel;

namespace {

template <class A>
ek::Moments<A> moments_of(const Values& values) {
  ek::Moments<A> m;
  if (values.empty()) return m;
  m.count = static_cast<std::int64_t>(values.size());
  m.shift = static_cast<A>(values[0]);
  for (const double v : values) m.delta += static_cast<A>(v - values[0]) / static_cast<A>(values.size());
  for (const double v : values) {
    const A apart = static_cast<A>(v - values[0]) - m.delta;
    m.M2 += apart * apart;
  }
  return m;
}

template <class A>
void check_same(const ek::Moments<A>& got, const ek::Moments<A>& expected) {
  CHECK(got.count == expected.count);
  CHECK(bit_difference({double(got.shift), double(got.delta), double(got.M2)},
                       {double(expected.shift), double(expected.delta), double(expected.M2)}) == "");
}

void check_combine(const Case& c) {
  CHECK(c.text("/expected/merge_with_empty") == "bitwise equal to the non-empty part");
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    const auto a = moments_of<T>(c.values("/inputs/A")), b = moments_of<T>(c.values("/inputs/B")),
               empty = moments_of<T>(c.values("/inputs/E"));
    const auto expect = [&](const char* name, T got) {
      INFO(name);
      CHECK(difference({double(got)}, c.values(std::string("/expected/") + name), c.limit(type, name)) == "");
    };
    for (const auto& both : {ek::merge(a, b), ek::merge(b, a)}) {
      CHECK(static_cast<double>(both.count) == c.number("/expected/n"));
      expect("mean", both.mean());
      expect("M2", both.M2);
      expect("var_biased", both.variance());
      expect("var_unbiased", both.unbiased_variance());
    }
    for (const auto& m : {a, b}) {
      check_same(ek::merge(m, empty), m);
      check_same(ek::merge(empty, m), m);
    }
    check_same(ek::merge(empty, empty), ek::Moments<T>{});
    CHECK(ek::merge(empty, empty).variance() == 0);
  });
}

}  // namespace

void cases_test::add_moments_cases(Table& table) { table["moments.combine"] = check_combine; }
