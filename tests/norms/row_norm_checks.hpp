// What every norm over rows must show, whatever its formula: called for each of them by its own test.
#pragma once

#include "norms/norm_under_test.hpp"
#include "support/gradient_check.hpp"

#include <string>

namespace norms_test {

template <class Norm, class T, class W, class B>
void check_matrix(const Data& data, const W& weight, const B& bias, const typename Norm::Options& options, double eps) {
  const std::size_t rows = data.slab.rows(), length = data.slab.length;
  const auto x = matrix_of<RowMatrix<T>>(rows, length, data.x), dy = matrix_of<RowMatrix<T>>(rows, length, data.dy);
  RowMatrix<T> y(rows, length), dx(rows, length);
  check_against_reference<Norm>(ek::serial, data, x, dy, y, dx, weight, bias, options, eps);
}

template <class Norm, class T>
void check_shapes() {
  for (const auto& shape : support::awkward_shapes()) {
    const Data data = make_data<T>({shape.rows, shape.length, 1}, shape.rows + 7 * shape.length);
    check_matrix<Norm, T>(data, vector_of<T>(data.weight), vector_of<T>(data.bias), {.eps = 1e-5}, 1e-5);
  }
}

template <class Norm, class T>
void check_options() {
  for (std::size_t length : Counts{2, 17, 64}) {
    const Data data = make_data<T>({5, length, 1}, length);
    const Vector<T> weight = vector_of<T>(data.weight), bias = vector_of<T>(data.bias);
    const double machine = epsilon_of<T>();
    for (double eps : {0.0, 1e-6, 1e-5, 0.5, machine}) {
      for (bool unit_offset : {false, true}) {
        typename Norm::Options options{.unit_offset = unit_offset};
        options.eps = eps;
        if (eps == machine) options.eps = ek::machine_epsilon;
        check_matrix<Norm, T>(data, weight, bias, options, eps);
        check_matrix<Norm, T>(data, weight, ek::none, options, eps);
        check_matrix<Norm, T>(data, ek::none, bias, options, eps);
        check_matrix<Norm, T>(data, ek::none, ek::none, options, eps);
      }
    }
  }
}

// machine_epsilon stands for a number; a row small enough that this number decides tells it from any other.
template <class Norm, class T>
void check_machine_epsilon() {
  Data data = make_data<T>({3, 33, 1}, 5, 0, std::sqrt(epsilon_of<T>()));
  check_matrix<Norm, T>(data, ek::none, ek::none, {.eps = ek::machine_epsilon}, epsilon_of<T>());
}

// The whole path in double, inputs and parameters, against central differences of the library's own forward.
template <class Norm>
void check_gradients() {
  for (const support::Shape& shape : {support::Shape{3, 5}, support::Shape{2, 17}, support::Shape{4, 1}}) {
    const std::size_t rows = shape.rows, length = shape.length;
    for (bool unit_offset : {false, true}) {
      INFO(rows << " x " << length << ", unit offset " << unit_offset);
      const Data data = make_data<double>({rows, length, 1}, 11 * rows + length);
      const typename Norm::Options options{.eps = 1e-2, .unit_offset = unit_offset};
      const auto loss = [&](const Values& x, const Values& weight, const Values& bias) {
        RowMatrix<double> y(rows, length);
        Norm::forward(ek::serial, matrix_of<RowMatrix<double>>(rows, length, x), vector_of<double>(weight),
                      vector_of<double>(bias), y, ek::none, options);
        return support::weighted_sum(values_of(y), data.dy);
      };
      const auto x = matrix_of<RowMatrix<double>>(rows, length, data.x);
      const auto dy = matrix_of<RowMatrix<double>>(rows, length, data.dy);
      const auto weight = vector_of<double>(data.weight), bias = vector_of<double>(data.bias);
      typename Norm::template Saved<double> saved;
      RowMatrix<double> y(rows, length), dx(rows, length);
      Vector<double> dweight = Vector<double>::Zero(Eigen::Index(length)), dbias = dweight;
      Norm::forward(ek::serial, x, weight, bias, y, saved, options);
      Norm::backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias);

      const auto by_x = [&](const Values& p) { return loss(p, data.weight, data.bias); };
      const auto by_weight = [&](const Values& p) { return loss(data.x, p, data.bias); };
      const auto by_bias = [&](const Values& p) { return loss(data.x, data.weight, p); };
      using support::central_differences, support::gradient_distance, support::gradient_tolerance;
      CHECK(gradient_distance(values_of(dx), central_differences(by_x, data.x)) < gradient_tolerance);
      CHECK(gradient_distance(values_of(dweight), central_differences(by_weight, data.weight)) < gradient_tolerance);
      CHECK(gradient_distance(values_of(dbias), central_differences(by_bias, data.bias)) < gradient_tolerance);
    }
  }
}

template <class Norm>
void check_gradient_modes() {
  const std::size_t rows = 9, length = 21;
  const Data data = make_data<float>({rows, length, 1}, 31);
  const auto x = matrix_of<RowMatrix<float>>(rows, length, data.x),
             dy = matrix_of<RowMatrix<float>>(rows, length, data.dy);
  const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
  typename Norm::template Saved<float> saved;
  RowMatrix<float> y(rows, length), dx = RowMatrix<float>::Constant(rows, length, NAN);
  Norm::forward(ek::serial, x, weight, bias, y, saved, {});

  Vector<float> dweight = Vector<float>::Constant(Eigen::Index(length), NAN), dbias = dweight;
  Norm::backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias, ek::GradientMode::overwrite);
  const auto expected = Norm::reference_backward(data.slab, data.dy, data.x, data.weight,
                                                 {double(typename Norm::Options{}.eps), false, {}});
  const double epsilon = epsilon_of<float>();
  CHECK(worst_error(values_of(dweight), expected.dweight, expected.dweight_magnitude, data.slab.size(), epsilon) <= 1);
  CHECK(worst_error(values_of(dbias), expected.dbias, expected.dbias_magnitude, data.slab.size(), epsilon) <= 1);

  // The default adds: from 1 to 1 + g; activation gradients are written either way.
  Vector<float> dweight_sum = Vector<float>::Ones(Eigen::Index(length)), dbias_sum = dweight_sum;
  dx.setConstant(NAN);
  Norm::backward(ek::serial, dy, x, weight, saved, dx, dweight_sum, dbias_sum);
  CHECK((dweight_sum - (dweight + 1)).abs().maxCoeff() <= 4 * epsilon * (1 + dweight.abs().maxCoeff()));
  CHECK((dbias_sum - (dbias + 1)).abs().maxCoeff() <= 4 * epsilon * (1 + dbias.abs().maxCoeff()));
  CHECK(worst_error(values_of(dx), expected.dx, expected.dx_magnitude, length, epsilon) <= 1);
}

template <class Norm>
void check_without_saved() {
  const std::size_t rows = 6, length = 37;
  const Data data = make_data<float>({rows, length, 1}, 41);
  const auto x = matrix_of<RowMatrix<float>>(rows, length, data.x);
  const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
  typename Norm::template Saved<float> saved;
  RowMatrix<float> with = RowMatrix<float>::Constant(rows, length, NAN), without = with;
  Norm::forward(ek::serial, x, weight, bias, with, saved, {});
  Norm::forward(ek::serial, x, weight, bias, without, ek::none, {});
  CHECK((with.array() == without.array()).all());
}

template <class Norm>
void check_saved_statistics() {
  const std::size_t rows = 4, length = 19;
  const Data data = make_data<double>({rows, length, 1}, 43, 3);
  const auto x = matrix_of<RowMatrix<double>>(rows, length, data.x);
  typename Norm::template Saved<double> saved;
  RowMatrix<double> y(rows, length);
  Norm::forward(ek::serial, x, ek::none, ek::none, y, saved, {.eps = 1e-3});
  const auto expected = Norm::reference(data.slab, data.x, {}, {}, {1e-3, false, {}});
  REQUIRE(saved.rows() == ek::Index(rows));
  for (std::size_t r = 0; r < rows; ++r) {
    CHECK(std::abs(saved.rstd(ek::Index(r)) / expected.rstd[r] - 1) <
          support::tolerance(length, 1, epsilon_of<double>()));
    if constexpr (Norm::centred) {
      CHECK(std::abs(saved.mean(ek::Index(r)) - expected.mean[r]) <
            support::tolerance(length, 5, epsilon_of<double>()));
    }
  }
}

// NaN and infinity ruin their own row and no other; several rows share a pack or a block in most kernels. The rows lie
// along memory (axis 1) or across it (axis 0, where a row is a column of the matrix).
template <class Norm>
void check_isolation() {
  const ek::Index rows = 21;
  for (ek::Index length : {3, 16, 33, 100}) {
    for (bool along : {true, false}) {
      const Slab s = along ? Slab{rows, std::size_t(length), 1} : Slab{1, std::size_t(length), rows};
      const Data data = make_data<float>(s, s.length);
      const std::size_t r = along ? rows : s.length, c = along ? s.length : rows;
      const auto clean = matrix_of<RowMatrix<float>>(r, c, data.x), dy = matrix_of<RowMatrix<float>>(r, c, data.dy);
      const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
      const auto run = [&](const RowMatrix<float>& x, RowMatrix<float>& y, RowMatrix<float>& dx) {
        typename Norm::template Saved<float> saved;
        Norm::forward(ek::serial, x, weight, bias, y, saved, {.axis = along ? 1 : 0});
        Norm::backward(ek::serial, dy, x, weight, saved, dx, ek::none, ek::none);
      };
      RowMatrix<float> y = clean, dx = clean, clean_y = clean, clean_dx = clean;
      run(clean, clean_y, clean_dx);
      const auto row = [&](RowMatrix<float>& m, ek::Index i) -> Eigen::ArrayXf {
        return along ? Eigen::ArrayXf(m.row(i).transpose()) : Eigen::ArrayXf(m.col(i));
      };
      for (float poison : {nan_of<float>(), std::numeric_limits<float>::infinity()}) {
        RowMatrix<float> x = clean;
        const auto at = [&](ek::Index i, ek::Index j) -> float& { return along ? x(i, j) : x(j, i); };
        at(0, 0) = at(5, length - 1) = at(10, length / 2) = at(20, 1) = poison;
        run(x, y, dx);
        for (ek::Index i = 0; i < rows; ++i) {
          INFO("row " << i << " of length " << length << ", along memory " << along << ", poison " << poison);
          if (i == 0 || i == 5 || i == 10 || i == 20) {
            CHECK(row(y, i).isNaN().any());
            CHECK(row(dx, i).isNaN().any());
          } else {
            CHECK((row(y, i) == row(clean_y, i)).all());
            CHECK((row(dx, i) == row(clean_dx, i)).all());
          }
        }
      }
    }
  }
}

}  // namespace norms_test
