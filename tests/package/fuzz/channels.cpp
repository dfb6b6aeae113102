// Norms over channels: tensors of any shape up to 4 x 6 x 12, any channel and sample axis, any number of groups, ghost batches,
// any values; sometimes a weight of the wrong length. A call either throws ShapeError and has written nothing, or leaves y
// with the mean and variance that it should have.
#include "evenkeel/norms/batch_norm.hpp"
#include "evenkeel/norms/group_norm.hpp"
#include "package/fuzz/bytes.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <cmath>

namespace ek = evenkeel;

namespace {

using Tensor = Eigen::TensorMap<Eigen::Tensor<float, 3, Eigen::RowMajor>>;
using Vector = Eigen::Map<Eigen::ArrayXf>;

struct Shape {
  int extent[3];
  std::size_t size() const { return static_cast<std::size_t>(extent[0] * extent[1] * extent[2]); }
  Tensor map(std::vector<float>& memory) const { return {memory.data(), extent[0], extent[1], extent[2]}; }
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Without a weight the sums over what shares statistics are those of a standardized set: mean 0, square at most 1.
void check_all(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0, squares = 0;
  for (const float v : x)
    if (!(std::abs(v) < 1e3f)) return;
  for (const float v : y) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const double n = static_cast<double>(y.size());
  fuzz::require(std::abs(sum) <= 1e-3 * n + 1e-3, "the mean of y is not 0");
  fuzz::require(squares <= 1.001 * n, "the variance of y is above 1");
}

template <class Saved, class Options, class Forward, class Backward>
void run(fuzz::Bytes& in, Options options, bool checks, const Forward& forward, const Backward& backward) {
  const Shape shape{{in.integer(0, 4), in.integer(0, 6), in.integer(0, 12)}};
  const int channel_axis = in.integer(0, 2);
  options.axis = in.rarely() ? in.integer(-4, 3) : channel_axis;
  options.eps = in.eps();
  const int channels = shape.extent[channel_axis];
  std::vector<float> x = in.values(shape.size()), y(shape.size(), 7), dy = in.values(shape.size()), dx(shape.size());
  std::vector<float> weight = in.values(static_cast<std::size_t>(channels + (in.rarely() ? 1 : 0))), dweight(weight),
                     dbias(weight);
  const auto vector = [](std::vector<float>& v) { return Vector(v.data(), static_cast<Eigen::Index>(v.size())); };
  const std::vector<float> x_before = x, y_before = y;
  const bool plain = in.flag(), in_place = in.rarely();
  std::vector<float>& out = in_place ? x : y;
  Saved saved;
  try {
    if (plain)
      forward(shape.map(x), ek::none, shape.map(out), saved, options);
    else
      forward(shape.map(x), vector(weight), shape.map(out), saved, options);
  } catch (const ek::ShapeError&) {
    fuzz::require(same(x, x_before) && same(y, y_before), "a refused call has written");
    return;
  }
  // With eps = 0 the reciprocal of a spread of denormal numbers is infinite in float.
  if (plain && checks && options.eps > 0) check_all(x_before, out);
  try {
    if (plain)
      backward(shape.map(dy), shape.map(x), ek::none, saved, shape.map(dx), ek::none, ek::none);
    else
      backward(shape.map(dy), shape.map(x), vector(weight), saved, shape.map(dx), vector(dweight), vector(dbias));
    fuzz::require(!in_place || shape.size() == 0, "a backward after a forward in place was allowed");
  } catch (const ek::ShapeError&) {
    fuzz::require(in_place, "the backward of a forward that went through was refused");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Bytes in(data, size);
  if (in.flag()) {
    ek::BatchNormOptions options;
    run<ek::BatchNormSaved<float>>(
        in, options, true,
        [](const auto& x, const auto& w, auto&& y, auto& saved, const auto& o) {
          ek::batch_norm(ek::serial, x, w, ek::none, y, saved, o);
        },
        [](const auto& dy, const auto& x, const auto& w, auto& saved, auto&& dx, auto&& dw, auto&& db) {
          ek::batch_norm_backward(ek::serial, dy, x, w, saved, dx, dw, db);
        });
  } else {
    ek::GroupNormOptions options;
    options.groups = in.integer(0, 6);
    options.sample_axis = in.rarely() ? in.integer(-3, 3) : 0;
    run<ek::GroupNormSaved<float>>(
        in, options, options.sample_axis == 0,
        [](const auto& x, const auto& w, auto&& y, auto& saved, const auto& o) {
          ek::group_norm(ek::serial, x, w, ek::none, y, saved, o);
        },
        [](const auto& dy, const auto& x, const auto& w, auto& saved, auto&& dx, auto&& dw, auto&& db) {
          ek::group_norm_backward(ek::serial, dy, x, w, saved, dx, dw, db);
        });
  }
  return 0;
}
