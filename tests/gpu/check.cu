// Row norms on a GPU against a simple kernel in double: types, widths, alignments, pitches, poisoned outputs, the same
// bits twice, and one tensor of more than 2^32 elements. Prints a line for each type and norm, and what is wrong.
//
//   check [small | tiny]     small: what the emulator can do in a minute; tiny: what compute-sanitizer can
//
// CHECK_TYPE names the type of the data: float, double, Eigen::half, Eigen::bfloat16.

#include "evenkeel/cuda.hpp"
#include "gpu/device_array.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

namespace ek = evenkeel;
using gpu::DeviceArray;

namespace {

int failures = 0;
std::int64_t comparisons = 0;

/// The data of one case: rows of `length` values, `pitch` apart.
struct Shape {
  std::int64_t rows, length, pitch;
  int lead;  // elements that the first row is off a whole allocation
};

template <class T>
struct Limits;  // of the error, relative to the largest value of a row, and of a sum over rows to its terms' sizes
template <>
struct Limits<float> {
  static constexpr double row = 3e-6, sum = 3e-6;
  static constexpr const char* name = "float";
};
template <>
struct Limits<Eigen::half> {
  static constexpr double row = 1.2e-3, sum = 3e-6;
  static constexpr const char* name = "half";
};
template <>
struct Limits<Eigen::bfloat16> {
  static constexpr double row = 9e-3, sum = 3e-6;
  static constexpr const char* name = "bfloat16";
};
template <>
struct Limits<double> {
  static constexpr double row = 1e-14, sum = 3e-6;  // gradients of parameters are float
  static constexpr const char* name = "double";
};

/// One row a thread. `wrong` gets, per row, the largest error of y and dx as a share of what is allowed; NaN counts as
/// wrong. A row of one element has dx = 0 under LayerNorm, whose terms cancel: it is compared with what they were.
template <bool Centred, class T>
__global__ void check_rows(const T* x, const T* dy, const float* weight, const float* bias, const T* y, const T* dx,
                           Shape s, double eps, double limit, double* wrong) {
  using ek::detail::to;
  const std::int64_t r = gpu::thread_number();
  if (r >= s.rows) return;
  const std::int64_t at = r * s.pitch;
  const auto n = static_cast<double>(s.length);
  double mean = 0, square = 0, h_sum = 0, hxhat_sum = 0;
  if (Centred)
    for (std::int64_t i = 0; i < s.length; ++i) mean += to<double>(x[at + i]) / n;
  for (std::int64_t i = 0; i < s.length; ++i) {
    const double c = to<double>(x[at + i]) - mean;
    square += c * c / n;
  }
  const double rstd = 1 / std::sqrt(square + eps);
  for (std::int64_t i = 0; i < s.length; ++i) {
    const double h = to<double>(dy[at + i]) * weight[i];
    h_sum += Centred ? h / n : 0.0;
    hxhat_sum += h * (to<double>(x[at + i]) - mean) * rstd / n;
  }
  double y_size = 1e-300, dx_size = 1e-300, y_error = 0, dx_error = 0;
  for (std::int64_t i = 0; i < s.length; ++i) {
    const double xhat = (to<double>(x[at + i]) - mean) * rstd;
    const double want_y = xhat * weight[i] + (Centred ? bias[i] : 0.0f);
    const double h = to<double>(dy[at + i]) * weight[i], want_dx = rstd * (h - h_sum - xhat * hxhat_sum);
    y_size = std::fmax(y_size, std::fabs(want_y));
    dx_size = std::fmax(dx_size, std::fabs(rstd * h));
    const double ey = std::fabs(to<double>(y[at + i]) - want_y), edx = std::fabs(to<double>(dx[at + i]) - want_dx);
    y_error = ey <= y_error ? y_error : ey;  // NaN stays
    dx_error = edx <= dx_error ? dx_error : edx;
  }
  const double a = y_error / (limit * y_size), b = dx_error / (limit * dx_size);
  wrong[r] = a == a && b == b ? std::fmax(a, b) : 1e300;
}

/// One feature a thread.
template <bool Centred, class T>
__global__ void check_features(const T* x, const T* dy, const float* dweight, const float* dbias, Shape s, double limit,
                               const double* row_values, double* wrong) {
  using ek::detail::to;
  const std::int64_t i = gpu::thread_number();
  if (i >= s.length) return;
  double dw = 0, db = 0, dw_size = 1e-300, db_size = 1e-300;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const double g = to<double>(dy[r * s.pitch + i]);
    const double xhat = (to<double>(x[r * s.pitch + i]) - row_values[2 * r]) * row_values[2 * r + 1];
    dw += g * xhat, db += g;
    // Near the mean xhat is a difference that cancels: its error is that of 1, not of itself.
    dw_size += std::fabs(g) * std::fmax(std::fabs(xhat), 1.0), db_size += std::fabs(g);
  }
  const double a = std::fabs(dweight[i] - dw) / (limit * dw_size);
  const double b = Centred ? std::fabs(dbias[i] - db) / (limit * db_size) : 0.0;
  wrong[i] = a == a && b == b ? std::fmax(a, b) : 1e300;
}

template <bool Centred, class T>
__global__ void row_values_kernel(const T* x, Shape s, double eps, double* values) {
  using ek::detail::to;
  const std::int64_t r = gpu::thread_number();
  if (r >= s.rows) return;
  const auto n = static_cast<double>(s.length);
  double mean = 0, square = 0;
  if (Centred)
    for (std::int64_t i = 0; i < s.length; ++i) mean += to<double>(x[r * s.pitch + i]) / n;
  for (std::int64_t i = 0; i < s.length; ++i) {
    const double c = to<double>(x[r * s.pitch + i]) - mean;
    square += c * c / n;
  }
  values[2 * r] = mean;
  values[2 * r + 1] = 1 / std::sqrt(square + eps);
}

double largest(const DeviceArray<double>& values) {
  double most = 0;
  for (const double v : values.host()) most = v <= most ? most : v;
  return most;
}

void report(const char* what, const char* type, const Shape& s, double share) {
  ++comparisons;
  if (share <= 1) return;
  ++failures;
  std::printf("WRONG  %s %s, %lld rows of %lld, pitch %lld, lead %d: %.3g times the allowed error\n", what, type,
              static_cast<long long>(s.rows), static_cast<long long>(s.length), static_cast<long long>(s.pitch), s.lead,
              share);
}

template <class T>
using Matrix = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;
template <class T>
using Vector = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, 1>>;

/// Forward and backward of one norm over one shape; twice, into poisoned memory. T is Eigen's scalar.
template <bool Centred, class T>
void check_norm(const ek::CudaStream& device, const Shape& s) {
  using D = ek::detail::device_scalar_t<T>;
  using A = ek::accumulator_t<T>;
  using Saved =
      std::conditional_t<Centred, ek::LayerNormSaved<A, ek::CudaStorage>, ek::RmsNormSaved<A, ek::CudaStorage>>;
  const std::int64_t size = (s.rows - 1) * s.pitch + s.length;
  DeviceArray<T> x(size, s.lead), dy(size, s.lead), y(size, s.lead), dx(size, s.lead);
  DeviceArray<float> weight(s.length), bias(s.length), dweight(s.length), dbias(s.length);
  const auto random = [&](const char* name) { return ek::CudaRandom(device, ek::RandomStream(1, name)); };
  ek::normal(x.data(), size, 0.5, 1.5, random("x"));
  ek::normal(dy.data(), size, 0, 1, random("dy"));
  ek::normal(weight.data(), s.length, 1, 0.3, random("weight"));
  ek::normal(bias.data(), s.length, 0, 1, random("bias"));
  const auto matrix = [&](DeviceArray<T>& a) {
    return Matrix<T>(a.data(), s.rows, s.length, Eigen::OuterStride<>(s.pitch));
  };
  const auto vector = [&](DeviceArray<float>& a) { return Vector<float>(a.data(), s.length); };
  Saved saved;
  saved.reserve(device, matrix(x));
  constexpr double eps = 1e-5;
  std::vector<std::vector<T>> bits;
  std::vector<std::vector<float>> sums;
  for (int turn = 0; turn < 2; ++turn) {
    y.poison(), dx.poison(), dweight.poison(), dbias.poison();
    if constexpr (Centred) {
      ek::layer_norm(device, matrix(x), vector(weight), vector(bias), matrix(y), saved, {.eps = eps});
      ek::layer_norm_backward(device, matrix(dy), matrix(x), vector(weight), saved, matrix(dx), vector(dweight),
                              vector(dbias), ek::GradientMode::overwrite);
    } else {
      ek::rms_norm(device, matrix(x), vector(weight), matrix(y), saved, {.eps = eps});
      ek::rms_norm_backward(device, matrix(dy), matrix(x), vector(weight), saved, matrix(dx), vector(dweight),
                            ek::GradientMode::overwrite);
    }
    if (size <= 1 << 22) {
      bits.push_back(y.host()), bits.push_back(dx.host());
      sums.push_back(dweight.host()), sums.push_back(dbias.host());
    }
  }
  const char* const name = Centred ? "layer_norm" : "rms_norm";
  if (!bits.empty()) {
    const auto same = [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    report(
        "other bits in the second run:", name, s,
        same(bits[0], bits[2]) && same(bits[1], bits[3]) && same(sums[0], sums[2]) && same(sums[1], sums[3]) ? 0 : 9);
  }
  const auto on_device = [](DeviceArray<T>& a) { return reinterpret_cast<const D*>(a.data()); };
  DeviceArray<double> wrong(s.rows), wrong_features(s.length), values(2 * s.rows);
  gpu::run(&check_rows<Centred, D>, s.rows, on_device(x), on_device(dy), weight.data(), bias.data(), on_device(y),
           on_device(dx), s, eps, Limits<T>::row, wrong.data());
  report(name, Limits<T>::name, s, largest(wrong));
  gpu::run(&row_values_kernel<Centred, D>, s.rows, on_device(x), s, eps, values.data());
  gpu::run(&check_features<Centred, D>, s.length, on_device(x), on_device(dy), dweight.data(), dbias.data(), s,
           Limits<T>::sum * std::sqrt(static_cast<double>(s.rows)), values.data(), wrong_features.data());
  report((std::string(name) + " parameters").c_str(), Limits<T>::name, s, largest(wrong_features));
}

template <class T>
void check_type(const ek::CudaStream& device, bool small, bool tiny) {
  const std::int64_t before = comparisons;
  const int failed = failures;
  std::vector<std::int64_t> widths = {1,    7,    64,   96,   127,  128,  200,   255,   256,   768,   1000, 1024,
                                      1027, 2048, 4096, 5120, 8192, 8200, 12288, 16384, 32768, 32769, 65536};
  if (!small) widths.insert(widths.end(), {131072, 262144});
  if (tiny) widths = {7, 128, 1000, 1027, 4096, 32768};  // one for each kind of plan
  for (const std::int64_t width : widths)
    for (const std::int64_t rows : {std::int64_t(1), std::int64_t(3), std::int64_t(133), std::int64_t(4096)}) {
      if (rows * width > (small ? 1 << 13 : 1 << 25) && rows > (small ? 1 : 3)) continue;
      // Whole rows; rows that lie apart, still aligned; rows off by one element, the case of a slice.
      for (const Shape& s :
           {Shape{rows, width, width, 0}, Shape{rows, width, width + 16, 0}, Shape{rows, width, width + 1, 1}}) {
        check_norm<true, T>(device, s);
        check_norm<false, T>(device, s);
      }
    }
  std::printf("%s: %lld comparisons, %d wrong\n", Limits<T>::name, static_cast<long long>(comparisons - before),
              failures - failed);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string size = argc > 1 ? argv[1] : "";
  const bool tiny = size == "tiny", small = tiny || size == "small";
  try {
    const ek::CudaStream device(nullptr);
    const ek::CudaFacts& facts = device.facts();
    std::printf("%d multiprocessors, architecture %d, %d bytes of shared memory a block\n", facts.multiprocessors,
                facts.architecture, facts.shared_bytes);
    check_type<CHECK_TYPE>(device, small, tiny);
    if constexpr (std::is_same_v<CHECK_TYPE, Eigen::bfloat16>)
      if (!small) {
        // 8.6 GB a tensor: offsets of rows leave 32 bits.
        check_norm<false, Eigen::bfloat16>(device, {(std::int64_t(1) << 32) / 4096 + 3, 4096, 4096, 0});
        std::printf("more than 2^32 elements: done\n");
      }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("check: %lld comparisons, %d wrong\n", static_cast<long long>(comparisons), failures);
  return failures != 0;
}
