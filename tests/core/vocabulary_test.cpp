#include "evenkeel/detail/kernels_cpu.hpp"
#include "evenkeel/detail/values.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <limits>

using namespace evenkeel::detail;

namespace {

template <class A>
Pack<A> pack_from(A first, A step) {
  A lane[Pack<A>::size];
  for (int i = 0; i < Pack<A>::size; ++i) lane[i] = first + step * static_cast<A>(i);
  return load<Pack<A>>(lane);
}

template <class V>
struct Three {
  V a, b, c;
};

}  // namespace

TEMPLATE_TEST_CASE("vocabulary: packs do lane by lane what scalars do", "", float, double) {
  using A = TestType;
  using V = Pack<A>;
  const V x = pack_from<A>(A(-1.75), A(0.5)), y = pack_from<A>(A(2), A(-0.375));
  const A epsilon = 8 * std::numeric_limits<A>::epsilon();
  for (int i = 0; i < V::size; ++i) {
    const A a = x[i], b = y[i];
    CHECK((x + y)[i] == a + b);
    CHECK((x - y)[i] == a - b);
    CHECK((x * y)[i] == a * b);
    CHECK((x / y)[i] == a / b);
    CHECK((x + A(3))[i] == a + 3);
    CHECK((A(3) - x)[i] == 3 - a);
    CHECK((-x)[i] == -a);
    CHECK(min(x, y)[i] == min(a, b));
    CHECK(max(x, y)[i] == max(a, b));
    CHECK(select_less(x, y, V(splat<V>(1)), V(splat<V>(2)))[i] == select_less(a, b, A(1), A(2)));
    CHECK(sqrt(V(x * x))[i] == Approx(std::sqrt(a * a)).epsilon(epsilon));
    CHECK(exp(x)[i] == Approx(std::exp(a)).epsilon(epsilon));
    CHECK(tanh(x)[i] == Approx(std::tanh(a)).epsilon(epsilon).margin(epsilon));
    CHECK(erf(x)[i] == Approx(std::erf(a)).epsilon(epsilon));
    CHECK(plus(x, evenkeel::none)[i] == a);
    CHECK(plus(x, y)[i] == a + b);
    CHECK(round_to<Eigen::bfloat16>(x)[i] == round_to<Eigen::bfloat16>(a));
    CHECK(round_to<A>(x)[i] == a);
  }
  A sum = 0;
  for (int i = 0; i < V::size; ++i) sum += x[i];
  CHECK(lane_sum(x) == sum);  // every partial sum is exact
}

TEMPLATE_TEST_CASE("packs: loads and stores of every scalar", "", float, double, Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using V = Pack<A>;
  T data[3 * V::size], out[3 * V::size];
  for (int i = 0; i < 3 * V::size; ++i) data[i] = static_cast<T>(static_cast<float>(i) * 0.5f), out[i] = T(-1);
  const V v = load<V>(data + 1);
  for (int i = 0; i < V::size; ++i) CHECK(v[i] == static_cast<A>(data[1 + i]));
  store<V>(out, v);
  for (int i = 0; i < V::size; ++i) CHECK(out[i] == data[1 + i]);
  CHECK(out[V::size] == T(-1));
  const V some = load_lanes<V>(data, 2, V::size - 1);
  for (int i = 0; i < V::size; ++i) CHECK(some[i] == (i < V::size - 1 ? static_cast<A>(data[2 * i]) : A(0)));
  store_lanes<V>(out, 3, 1, v);
  CHECK(out[0] == data[1]);
}

TEST_CASE("values: members of a struct in the order of their declaration") {
  Three<float> three{1, 2, 3};
  CHECK(field_count<Three> == 3);
  float sum = 0;
  for_each_field(three, [&](int k, float& value) { sum += value * static_cast<float>(k + 1); });
  CHECK(sum == 14);
}
