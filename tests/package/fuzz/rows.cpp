// Norms over rows: any shape up to 5 x 40, any strides, any axis, in place or not, any values; sometimes a weight of the wrong
// length, a wrong axis or an overlap. A call either throws ShapeError and has written nothing, or agrees with the formula.
#include "evenkeel/norms/gated_rms_norm.hpp"
#include "evenkeel/norms/l2_norm.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"
#include "package/fuzz/bytes.hpp"

#include <cmath>

namespace ek = evenkeel;

namespace {

using Stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
using View = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Stride>;
using Vector = Eigen::Map<Eigen::ArrayXf>;

/// A matrix in memory of its own, as large as it needs and no larger.
struct Matrix {
  int rows, cols, row_stride, col_stride;
  std::vector<float> memory;

  Matrix(fuzz::Bytes& in, int r, int c) : rows(r), cols(c), row_stride(0), col_stride(in.integer(1, 3)) {
    row_stride = col_stride * (c > 0 ? c : 1) + in.integer(0, 3);
    memory = in.values(r > 0 && c > 0 ? static_cast<std::size_t>((r - 1) * row_stride + (c - 1) * col_stride + 1) : 0);
  }
  View view() { return View(memory.data(), rows, cols, Stride(row_stride, col_stride)); }
};

bool moderate(const View& x) {
  for (int r = 0; r < x.rows(); ++r)
    for (int c = 0; c < x.cols(); ++c)
      if (!(std::abs(x(r, c)) < 1e3f)) return false;
  return true;
}

/// y = x / sqrt(mean(x^2) + eps), or the like, along the columns of each row, in double.
enum class Kind { rms, layer, l2 };
void check(Kind kind, const View& x, const std::vector<float>& weight, double eps, const View& y) {
  for (int r = 0; r < x.rows(); ++r) {
    const double n = static_cast<double>(x.cols());
    double mean = 0, squares = 0;
    if (kind == Kind::layer)
      for (int c = 0; c < x.cols(); ++c) mean += x(r, c) / n;
    for (int c = 0; c < x.cols(); ++c) squares += (x(r, c) - mean) * (x(r, c) - mean);
    const double divisor = kind == Kind::l2 ? std::max(std::sqrt(squares), eps) : std::sqrt(squares / n + eps);
    if (!(divisor > 1e-2)) continue;  // rounding of a constant row is as large as what is left of it
    for (int c = 0; c < x.cols(); ++c) {
      const double w = weight.empty() ? 1 : weight[static_cast<std::size_t>(c)];
      if (!(std::abs(w) < 1e6)) continue;
      const double expected = (x(r, c) - mean) / divisor * w;
      const double magnitude = (std::abs(x(r, c)) + std::abs(mean)) / divisor * std::abs(w);
      // Far above the rounding of 40 terms in float, far below a wrong term.
      fuzz::require(std::abs(y(r, c) - expected) <= 1e-4 * (magnitude + std::abs(w)) + 1e-36,
                    "y is not what the formula says");
    }
  }
}

template <class Saved, class Options, class Forward, class Backward>
void run(fuzz::Bytes& in, Kind kind, const Forward& forward, const Backward& backward) {
  const int rows = in.integer(0, 5), cols = in.integer(0, 40);
  Matrix x(in, rows, cols), y(in, in.rarely() ? rows + 1 : rows, cols), dy(in, rows, cols), dx(in, rows, cols);
  Options options;
  options.eps = in.eps();
  options.unit_offset = in.flag();
  const bool along_columns = in.flag();
  options.axis = along_columns ? (in.flag() ? 1 : -1) : in.integer(-3, 2);
  const int length = along_columns ? cols : rows;
  std::vector<float> weight = in.values(static_cast<std::size_t>(length + (in.rarely() ? 1 : 0))), dweight(weight);
  const Vector w(weight.data(), static_cast<Eigen::Index>(weight.size()));
  Vector dw(dweight.data(), static_cast<Eigen::Index>(dweight.size()));
  const bool in_place = in.rarely(), overlaps = in.rarely();
  View out = in_place ? x.view() : y.view();
  if (overlaps && x.memory.size() > 1 && cols > 1)
    new (&out) View(x.memory.data() + 1, rows, cols - 1, Stride(x.row_stride, x.col_stride));

  const Matrix x_before = x;
  const std::vector<float> y_before = y.memory;
  Saved saved;
  try {
    forward(x.view(), w, out, saved, options);
  } catch (const ek::ShapeError&) {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    fuzz::require(same(x.memory, x_before.memory) && same(y.memory, y_before), "a refused call has written");
    return;
  }
  Matrix x_copy = x_before;
  if (along_columns && moderate(x_copy.view())) {
    std::vector<float> factors = weight;
    if (options.unit_offset)
      for (float& f : factors) f += 1;
    check(kind, x_copy.view(), factors, options.eps, out);
  }
  try {
    backward(dy.view(), x.view(), w, saved, dx.view(), dw);
    fuzz::require(!in_place || rows == 0 || cols == 0, "a backward after a forward in place was allowed");
  } catch (const ek::ShapeError&) {
    fuzz::require(in_place || overlaps, "the backward of a forward that went through was refused");
  }
}

void gated(fuzz::Bytes& in) {
  const int rows = in.integer(0, 5), cols = in.integer(0, 40);
  Matrix x(in, rows, cols), gate(in, rows, cols), y(in, rows, cols), dy(in, rows, cols), dx(in, rows, cols),
      dgate(in, rows, cols);
  ek::GatedRmsNormOptions options;
  options.eps = in.eps();
  options.axis = in.integer(-3, 2);
  options.order = in.flag() ? ek::GateOrder::norm_then_gate : ek::GateOrder::gate_then_norm;
  ek::GatedRmsNormSaved<float> saved;
  try {
    ek::gated_rms_norm(ek::serial, x.view(), gate.view(), ek::none, y.view(), saved, options);
    ek::gated_rms_norm_backward(ek::serial, dy.view(), x.view(), gate.view(), ek::none, saved, dx.view(), dgate.view(),
                                ek::none);
  } catch (const ek::ShapeError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Bytes in(data, size);
  switch (in.integer(0, 3)) {
    case 0:
      run<ek::RmsNormSaved<float>, ek::RmsNormOptions>(
          in, Kind::rms,
          [](const auto& x, const auto& w, auto& y, auto& saved, const auto& options) {
            ek::rms_norm(ek::serial, x, w, y, saved, options);
          },
          [](const auto& dy, const auto& x, const auto& w, auto& saved, auto&& dx, auto& dw) {
            ek::rms_norm_backward(ek::serial, dy, x, w, saved, dx, dw);
          });
      break;
    case 1:
      run<ek::LayerNormSaved<float>, ek::LayerNormOptions>(
          in, Kind::layer,
          [](const auto& x, const auto& w, auto& y, auto& saved, const auto& options) {
            ek::layer_norm(ek::serial, x, w, ek::none, y, saved, options);
          },
          [](const auto& dy, const auto& x, const auto& w, auto& saved, auto&& dx, auto& dw) {
            ek::layer_norm_backward(ek::serial, dy, x, w, saved, dx, dw, ek::none);
          });
      break;
    case 2:
      run<ek::L2NormSaved<float>, ek::L2NormOptions>(
          in, Kind::l2,
          [](const auto& x, const auto& w, auto& y, auto& saved, const auto& options) {
            ek::l2_norm(ek::serial, x, w, y, saved, options);
          },
          [](const auto& dy, const auto& x, const auto& w, auto& saved, auto&& dx, auto& dw) {
            ek::l2_norm_backward(ek::serial, dy, x, w, saved, dx, dw);
          });
      break;
    default:
      gated(in);
  }
  return 0;
}
