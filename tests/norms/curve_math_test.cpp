// The curves on packs against long double, in units of the last place.
#include "evenkeel/detail/curve_math.hpp"

#include "evenkeel/detail/kernels_cpu.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"

#include <cmath>
#include <limits>

namespace {

using namespace evenkeel::detail;

template <class T>
double worst_units(T (*got)(T), long double (*expected)(long double), double least, double most) {
  support::Random random(7);
  double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    const double size = least * std::pow(most / least, random.uniform());
    const T x = static_cast<T>(random.uniform() < 0.5 ? size : -size);
    const long double exact = expected(x);
    const T nearest = std::abs(static_cast<T>(exact));
    const long double unit = std::nextafter(nearest, std::numeric_limits<T>::infinity()) - nearest;
    worst = std::max(worst, static_cast<double>(std::abs(static_cast<long double>(got(x)) - exact) / unit));
  }
  return worst;
}

template <class Curve, class T>
T value(T x) {
  return Curve::value(Pack<T>(x))[1];
}
template <class Curve, class T>
T slope(T x) {
  return Curve::slope(Pack<T>(x))[1];
}

long double sech2(long double x) { return 1 / (std::cosh(x) * std::cosh(x)); }
long double gauss(long double x) { return 2 / std::sqrt(std::acos(-1.0L)) * std::exp(-x * x); }
long double silu(long double x) { return x / (1 + std::exp(-x)); }
long double silu_slope(long double x) {
  const long double s = 1 / (1 + std::exp(-x));
  return s * (1 + x / (1 + std::exp(x)));
}
long double tanh_of(long double x) { return std::tanh(x); }
long double erf_of(long double x) { return std::erf(x); }

}  // namespace

TEMPLATE_TEST_CASE("curves are within a few units of the last place", "[norms][curves]", float, double) {
  using T = TestType;
  const double end = std::is_same_v<T, float> ? 40 : 350;
  CHECK(worst_units<T>(value<TanhCurve, T>, tanh_of, 1e-30, 0.625) < 3);
  CHECK(worst_units<T>(value<TanhCurve, T>, tanh_of, 0.5, 30) < 3);
  CHECK(worst_units<T>(value<ErfCurve, T>, erf_of, 1e-30, 5) < 2);
  // A slope of e^-a has the relative error of e^-a, to which a rounded product contributes a units: the argument of
  // the exponential is exact for tanh and silu, and u^2 rounded for erf.
  CHECK(worst_units<T>(slope<TanhCurve, T>, sech2, 1e-30, end) < 8);
  CHECK(worst_units<T>(slope<ErfCurve, T>, gauss, 1e-30, 1) < 4);
  CHECK(worst_units<T>(value<SiluCurve, T>, silu, 1e-30, end) < 8);
  CHECK(worst_units<T>(slope<SiluCurve, T>, silu_slope, 1e-30, 0.5) < 4);
  CHECK(worst_units<T>(slope<SiluCurve, T>, silu_slope, 2, end) < 8);
}

TEMPLATE_TEST_CASE("curves end where they should", "[norms][curves]", float, double) {
  using T = TestType;
  const T huge = std::numeric_limits<T>::max(), infinity = std::numeric_limits<T>::infinity();
  for (const T x : {huge, infinity}) {
    CHECK(value<TanhCurve, T>(x) == 1);
    CHECK(value<TanhCurve, T>(-x) == -1);
    CHECK(slope<TanhCurve, T>(x) == 0);
    CHECK(slope<TanhCurve, T>(-x) == 0);
    CHECK(value<ErfCurve, T>(-x) == -1);
    CHECK(slope<ErfCurve, T>(x) == 0);
  }
  CHECK(value<SiluCurve, T>(huge) == huge);
  CHECK(value<SiluCurve, T>(-huge) == 0);
  CHECK(slope<SiluCurve, T>(huge) == 1);
  CHECK(slope<SiluCurve, T>(-huge) == 0);
  const T nan = std::numeric_limits<T>::quiet_NaN();
  CHECK(std::isnan(value<TanhCurve, T>(nan)));
  CHECK(std::isnan(slope<TanhCurve, T>(nan)));
  CHECK(std::isnan(slope<ErfCurve, T>(nan)));
  CHECK(std::isnan(value<SiluCurve, T>(nan)));
  CHECK(std::isnan(slope<SiluCurve, T>(nan)));
}
