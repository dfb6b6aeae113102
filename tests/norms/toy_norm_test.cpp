#include "norms/toy_norm.hpp"

#include "support/catch.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <cmath>
#include <vector>

namespace ek = evenkeel;

namespace {

using RowMajor = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColMajor = Eigen::ArrayXXf;

template <class M, class Device>
void check_against_formula(const Device& device, ek::Index rows, ek::Index length) {
  INFO(rows << " rows of " << length);
  const M a = M::Random(rows, length) + 0.5f, b = M::Random(rows, length);  // (rows, length)
  const Eigen::ArrayXf first = Eigen::ArrayXf::LinSpaced(length, 0.5f, 1.5f), second = 2 - first;
  M product(rows, length), sum(rows, length);
  std::vector<float> kept(static_cast<std::size_t>(2 * rows));
  toy::toy_norm(device, a, b, first, second, product, sum, kept.data(), 1e-3, 1);
  double worst = 0;
  for (ek::Index r = 0; r < rows; ++r) {
    double squares = 0, agreement = 0;
    for (ek::Index i = 0; i < length; ++i) {
      squares += std::pow(double(a(r, i)) + b(r, i), 2);
      agreement += double(a(r, i)) * b(r, i) * first(i);
    }
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(length) + 1e-3);
    worst = std::max(worst, std::abs(kept[static_cast<std::size_t>(r)] - rstd) / rstd);
    worst = std::max(worst, std::abs(kept[static_cast<std::size_t>(rows + r)] - agreement) / double(length));
    for (ek::Index i = 0; i < length; ++i) {
      worst = std::max(worst, std::abs(product(r, i) - double(a(r, i)) * b(r, i) * rstd * first(i)));
      worst = std::max(worst, std::abs(sum(r, i) - (double(a(r, i)) + b(r, i)) * rstd * second(i)));
    }
  }
  // Values of up to 30, where a row of one element is near 0: a few units in the last place.
  CHECK(worst < 1e-5);
}

}  // namespace

TEST_CASE("toy norm: two inputs, two weights, two outputs, one more row sum") {
  Eigen::ThreadPool pool(3);
  const Eigen::ThreadPoolDevice threads(&pool, 3);
  for (const ek::Index length : {1, 7, 8, 16, 65, 1031})
    for (const ek::Index rows : {1, 5, 33}) {
      check_against_formula<RowMajor>(ek::serial, rows, length);
      check_against_formula<ColMajor>(ek::serial, rows, length);
      check_against_formula<RowMajor>(threads, rows, length);
      check_against_formula<ColMajor>(threads, rows, length);
    }
}

TEST_CASE("toy norm: outputs may stand where the inputs stood, each in its place") {
  const RowMajor a = RowMajor::Random(9, 77), b = RowMajor::Random(9, 77);
  const Eigen::ArrayXf weight = Eigen::ArrayXf::Ones(77);
  RowMajor product(9, 77), sum(9, 77), a2 = a, b2 = b;
  std::vector<float> kept(18);
  toy::toy_norm(ek::serial, a, b, weight, weight, product, sum, kept.data(), 1e-3, -1);
  toy::toy_norm(ek::serial, a2, b2, weight, weight, a2, b2, kept.data(), 1e-3, -1);
  CHECK((a2 == product).all());
  CHECK((b2 == sum).all());
}
