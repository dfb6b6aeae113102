// Fifty steps of training: four ranks with a quarter of each batch follow one process, as closely as their type can say.
#include "distributed/thread_ranks.hpp"
#include "evenkeel/norms/batch_norm.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

using distributed_test::on_ranks;
namespace ek = evenkeel;
using ek::Index;

namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Vector = Eigen::Array<T, Eigen::Dynamic, 1>;

constexpr Index inputs = 6, hidden = 16, batch = 128, steps = 50;

template <class T>
Matrix<T> normal_matrix(Index rows, Index columns, std::uint64_t seed, double spread = 1) {
  const auto values = support::normal<T>(std::size_t(rows * columns), seed, 0, spread);
  Matrix<T> m(rows, columns);
  for (Index i = 0; i < m.size(); ++i) m.data()[i] = T(values[std::size_t(i)]);
  return m;
}

// A linear layer, BatchNorm with ReLU, and another linear layer, trained to tell the sign of a product by gradient descent
// with momentum. `Norm` is "over all ranks" or "of one rank's own".
template <class T, bool synchronized, class C>
std::vector<double> losses_of(C& communicator) {
  Matrix<T> w1 = normal_matrix<T>(inputs, hidden, 1, 0.4), w2 = normal_matrix<T>(hidden, 1, 2, 0.25);
  Vector<T> weight = Vector<T>::Ones(hidden), bias = weight * 0;
  std::vector<Eigen::Map<Vector<T>>> values;
  for (auto* m : {&w1, &w2}) values.emplace_back(m->data(), m->size());
  for (auto* v : {&weight, &bias}) values.emplace_back(v->data(), v->size());
  std::vector<Vector<T>> velocity;
  for (const auto& v : values) velocity.push_back(Vector<T>::Zero(v.size()));

  const Index own = batch / communicator.size();
  ek::BatchNormSaved<T> saved;
  std::vector<double> losses;
  for (Index step = 0; step < steps; ++step) {
    const Matrix<T> x =
        normal_matrix<T>(batch, inputs, 100 + std::uint64_t(step)).middleRows(communicator.rank() * own, own);
    const Matrix<T> u = x * w1;
    Matrix<T> h = u, du = u;
    Vector<T> dweight = weight, dbias = bias;
    if constexpr (synchronized)
      ek::batch_norm<ek::Relu>(ek::serial, u, weight, bias, h, saved, {}, communicator);
    else
      ek::batch_norm<ek::Relu>(ek::serial, u, weight, bias, h, saved);
    const Matrix<T> logits = h * w2;
    Matrix<T> dlogits = logits;
    double loss = 0;
    for (Index i = 0; i < own; ++i) {
      const double target = x(i, 0) * x(i, 1) > 0 ? 1 : -1, margin = target * double(logits(i, 0));
      loss += std::log1p(std::exp(-margin)) / double(batch);
      dlogits(i, 0) = T(-target / (1 + std::exp(margin)) / double(batch));
    }
    const Matrix<T> dw2 = h.transpose() * dlogits, dh = dlogits * w2.transpose();
    if constexpr (synchronized)
      ek::batch_norm_backward<ek::Relu>(ek::serial, dh, u, weight, bias, saved, du, dweight, dbias,
                                        ek::GradientMode::overwrite, communicator);
    else
      ek::batch_norm_backward<ek::Relu>(ek::serial, dh, u, weight, bias, saved, du, dweight, dbias,
                                        ek::GradientMode::overwrite);
    const Matrix<T> dw1 = x.transpose() * du;
    // The gradients, and the loss, of all images.
    std::vector<double> sums{loss};
    for (const auto* m : {&dw1, &dw2}) sums.insert(sums.end(), m->data(), m->data() + m->size());
    for (const auto* v : {&dweight, &dbias}) sums.insert(sums.end(), v->data(), v->data() + v->size());
    communicator.all_reduce_sum(sums.data(), Index(sums.size()));
    losses.push_back(sums[0]);
    const double* from = sums.data() + 1;
    for (std::size_t i = 0; i < values.size(); ++i)
      for (Index k = 0; k < values[i].size(); ++k) {
        velocity[i](k) = T(0.9) * velocity[i](k) + T(*from++);
        values[i](k) -= T(0.1) * velocity[i](k);
      }
  }
  return losses;
}

// The largest difference of the losses of four ranks and of one process.
template <class T, bool synchronized>
double farthest() {
  ek::LocalCommunicator alone;
  const std::vector<double> one = losses_of<T, false>(alone);
  CHECK(one.back() < 0.9 * one.front());
  std::mutex mutex;
  double worst = 0;
  const std::string wrong = on_ranks(4, [&](auto communicator) -> std::string {
    const std::vector<double> losses = losses_of<T, synchronized>(communicator);
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < one.size(); ++i) worst = std::max(worst, std::abs(losses[i] - one[i]));
    return "";
  });
  CHECK(wrong == "");
  return worst;
}

}  // namespace

TEST_CASE("four ranks follow the training of one process for 50 steps", "[distributed]") {
  const double in_float = farthest<float, true>(), in_double = farthest<double, true>();
  CAPTURE(in_float, in_double);
  CHECK(in_float < 1e-4);
  CHECK(in_double < 1e-12);
  // With statistics of their own images they go elsewhere.
  CHECK(farthest<double, false>() > 1e-2);
}
