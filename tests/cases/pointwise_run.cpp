#include "cases/pointwise_run.hpp"

namespace cases_test {

template <class T, class Norm, class Device>
PointwiseResult run_pointwise(const Device& device, const PointwiseCase& c, Arrangement arrangement) {
  using norms_test::Scalars, norms_test::values_of, norms_test::vector_of;
  Memory<T> x(c, arrangement, c.x), dy(c, arrangement, c.dy), y(c, arrangement), dx(c, arrangement);
  const Scalars<T> scalars{static_cast<T>(c.alpha), static_cast<T>(c.shift)};
  const auto weight = vector_of<T>(c.weight), bias = vector_of<T>(c.bias);
  Scalars<T> ds{norms_test::nan_of<T>(), norms_test::nan_of<T>()};
  norms_test::Vector<T> dweight = norms_test::Vector<T>::Constant(c.length, norms_test::nan_of<T>()), dbias = dweight;
  typename Norm::template Saved<ek::accumulator_t<T>> saved;
  Norm::forward(device, x.map(), scalars, weight, bias, y.map(), saved, {.axis = 1});
  Norm::backward(device, dy.map(), x.map(), scalars, weight, saved, dx.map(), ds, dweight, dbias,
                 ek::GradientMode::overwrite);
  PointwiseResult result{y.values(), dx.values(), {double(ds.alpha)}, {}, values_of(dweight), values_of(dbias)};
  if (Norm::shifted) result.dshift = {double(ds.shift)};
  return result;
}

#define CASES_TEST_RUN(T, Norm)                                                                          \
  template PointwiseResult run_pointwise<T, Norm>(const ek::Serial&, const PointwiseCase&, Arrangement); \
  template PointwiseResult run_pointwise<T, Norm>(const Eigen::ThreadPoolDevice&, const PointwiseCase&, Arrangement)

CASES_TEST_RUN(double, DytUnderTest);
CASES_TEST_RUN(float, DytUnderTest);
CASES_TEST_RUN(Eigen::half, DytUnderTest);
CASES_TEST_RUN(Eigen::bfloat16, DytUnderTest);
CASES_TEST_RUN(double, DerfUnderTest);
CASES_TEST_RUN(float, DerfUnderTest);

}  // namespace cases_test
