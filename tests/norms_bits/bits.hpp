// The norms and the comparison for the tests of this folder. Compilers contract the same source differently in
// different loops, so they are built at several optimization levels and with every compiler.
#pragma once

#include "evenkeel/evenkeel.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/shapes.hpp"

#include <Eigen/Core>

#include <cstddef>
#include <cstring>
#include <vector>

namespace bits_test {

namespace ek = evenkeel;
using support::Counts;

inline constexpr std::size_t lengths[] = {1, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 77, 255, 768, 1031};
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Vector = Eigen::Array<T, Eigen::Dynamic, 1>;

template <class T>
Matrix<T> random_matrix(ek::Index rows, ek::Index cols, std::uint64_t seed) {
  const std::vector<double> values = support::normal<T>(std::size_t(rows * cols), seed, 0.25);
  Matrix<T> m(rows, cols);
  for (ek::Index i = 0; i < m.size(); ++i) m.data()[i] = T(values[std::size_t(i)]);
  return m;
}

template <class T>
struct Results {
  Matrix<T> y, dx, sum;
};

struct Rms {
  static constexpr const char* name = "rms_norm";
  template <class Device, class T>
  static Results<T> run(const Device& device, const Matrix<T>& x, const Matrix<T>& dy, const Vector<T>& weight,
                        const Vector<T>&) {
    Results<T> r{x, x, x};
    ek::RmsNormSaved<T> saved;
    ek::rms_norm(device, x, weight, r.y, saved);
    ek::rms_norm_backward(device, dy, x, weight, saved, r.dx, ek::none);
    return r;
  }
};

struct Layer {
  static constexpr const char* name = "layer_norm";
  template <class Device, class T>
  static Results<T> run(const Device& device, const Matrix<T>& x, const Matrix<T>& dy, const Vector<T>& weight,
                        const Vector<T>& bias) {
    Results<T> r{x, x, x};
    ek::LayerNormSaved<T> saved;
    ek::layer_norm(device, x, weight, bias, r.y, saved);
    ek::layer_norm_backward(device, dy, x, weight, saved, r.dx, ek::none, ek::none);
    return r;
  }
};

struct AddRms {
  static constexpr const char* name = "add_rms_norm";
  template <class Device, class T>
  static Results<T> run(const Device& device, const Matrix<T>& x, const Matrix<T>& dy, const Vector<T>& weight,
                        const Vector<T>&) {
    Results<T> r{x, x, x};
    ek::RmsNormSaved<T> saved;
    ek::add_rms_norm(device, x, dy, weight, r.sum, r.y, saved);
    ek::add_rms_norm_backward(device, dy, x, r.sum, weight, saved, r.dx, ek::none);
    return r;
  }
};

struct AddLayer {
  static constexpr const char* name = "add_layer_norm";
  template <class Device, class T>
  static Results<T> run(const Device& device, const Matrix<T>& x, const Matrix<T>& dy, const Vector<T>& weight,
                        const Vector<T>& bias) {
    Results<T> r{x, x, x};
    ek::LayerNormSaved<T> saved;
    ek::add_layer_norm(device, x, dy, weight, bias, r.sum, r.y, saved);
    ek::add_layer_norm_backward(device, dy, x, r.sum, weight, saved, r.dx, ek::none, ek::none);
    return r;
  }
};

template <class T>
bool same_bits(const Matrix<T>& a, ek::Index row_of_a, const Matrix<T>& b, ek::Index row_of_b) {
  return std::memcmp(&a(row_of_a, 0), &b(row_of_b, 0), sizeof(T) * std::size_t(a.cols())) == 0;
}

template <class T>
bool same_row(const Results<T>& a, ek::Index row_of_a, const Results<T>& b, ek::Index row_of_b) {
  return same_bits(a.y, row_of_a, b.y, row_of_b) && same_bits(a.dx, row_of_a, b.dx, row_of_b) &&
         same_bits(a.sum, row_of_a, b.sum, row_of_b);
}

}  // namespace bits_test
