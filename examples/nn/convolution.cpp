#include "nn/convolution.hpp"

#include "nn/parallel.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace nn {

namespace {

using Device = Eigen::ThreadPoolDevice;
using Map = Eigen::Map<Matrix<float>>;
using ConstMap = Eigen::Map<const Matrix<float>>;

constexpr Index piece = 8;

/// One for each thread, so that tasks allocate nothing once they have run.
struct Scratch {
  std::vector<float> padded, columns, product, rows;

  static Scratch& of_thread() {
    thread_local Scratch scratch;
    return scratch;
  }
};

/// With room for the last piece of a row that is copied in pieces.
float* room(std::vector<float>& memory, Index size) {
  if (Index(memory.size()) < size + piece) memory.resize(std::size_t(size + piece));
  return memory.data();
}

/// Planes of height * width with a border of zeros.
struct Bordered {
  Index channels, height, width, border;

  Index row() const { return width + 2 * border; }
  Index plane() const { return row() * (height + 2 * border); }
};

/// The images' values, `step` apart in both directions, with zeros between and around them.
void spread(const Planes& x, Index begin, Index count, Index step, const Bordered& shape, std::vector<float>& padded) {
  const Index planes = count * shape.channels, row = shape.row();
  const Index in_width = (shape.width - 1) / step + 1, in_height = (shape.height - 1) / step + 1;
  float* const all = room(padded, planes * shape.plane());
  std::fill_n(all, planes * shape.plane(), 0.0f);
  const float* from = &x(begin, 0, 0);
  for (Index p = 0; p < planes; ++p) {
    float* to = all + p * shape.plane() + shape.border * row + shape.border;
    for (Index i = 0; i < in_height; ++i, to += step * row, from += in_width) {
      if (step == 1)
        std::copy_n(from, in_width, to);
      else
        for (Index j = 0; j < in_width; ++j) to[j * step] = from[j];
    }
  }
}

/// The matrix of patches, (channels * taps, images * positions).
Map patches(const std::vector<float>& padded, Index count, const Bordered& shape, Index kernel, Index stride,
            std::vector<float>& columns) {
  const Index out_height = (shape.height - 1) / stride + 1, out_width = (shape.width - 1) / stride + 1;
  const Index rows = shape.channels * kernel * kernel, positions = count * out_height * out_width;
  float* to = room(columns, rows * positions);
  for (Index r = 0; r < rows; ++r) {
    const Index channel = r / (kernel * kernel), tap = r % (kernel * kernel);
    const Index start = channel * shape.plane() + tap / kernel * shape.row() + tap % kernel;
    for (Index image = 0; image < count; ++image) {
      const float* from = padded.data() + image * shape.channels * shape.plane() + start;
      for (Index i = 0; i < out_height; ++i, from += stride * shape.row(), to += out_width) {
        if (stride == 1) {
          // Pieces of one size cost less than rows of 7 to 28; what is too much is overwritten by the next row.
          for (Index j = 0; j < out_width; j += piece) std::memcpy(to + j, from + j, piece * sizeof(float));
        } else {
          for (Index j = 0; j < out_width; ++j) to[j] = from[j * stride];
        }
      }
    }
  }
  return {columns.data(), rows, positions};
}

/// (channels, images * positions) to (images, channels, positions), and the other way round.
void put(const Map& rows, Planes& y, Index begin, Index count) {
  const Index positions = y.dimension(2);
  for (Index image = 0; image < count; ++image)
    Map(&y(begin + image, 0, 0), rows.rows(), positions) = rows.middleCols(image * positions, positions);
}
Map take(const Planes& x, Index begin, Index count, std::vector<float>& memory) {
  const Index channels = x.dimension(1), positions = x.dimension(2);
  Map rows(room(memory, channels * count * positions), channels, count * positions);
  for (Index image = 0; image < count; ++image)
    rows.middleCols(image * positions, positions) = ConstMap(&x(begin + image, 0, 0), channels, positions);
  return rows;
}

Eigen::VectorXf sum_of_channels(const Planes& dy, Index begin, Index count) {
  Eigen::VectorXf sum = Eigen::VectorXf::Zero(dy.dimension(1));
  for (Index image = begin; image < begin + count; ++image)
    sum += ConstMap(&dy(image, 0, 0), dy.dimension(1), dy.dimension(2)).rowwise().sum();
  return sum;
}

}  // namespace

Convolution::PlainWeight::PlainWeight(const Matrix<float>& initial) : weight_("weight", initial.size()) {
  std::copy_n(initial.data(), initial.size(), weight_.value());
}
void Convolution::PlainWeight::materialize(const Device&, Matrix<float>& w) {
  std::copy_n(weight_.value(), weight_.size(), w.data());
}
void Convolution::PlainWeight::backward(const Device&, const Matrix<float>& dw) {
  Map(weight_.gradient(), dw.rows(), dw.cols()) += dw;
}

Convolution::Weight Convolution::make(WeightKind kind, const Matrix<float>& initial) {
  if (kind == WeightKind::weight_norm) return ek::WeightNorm<float>(initial);
  if (kind == WeightKind::scaled_standardization) return ek::ScaledWeightStandardization<float>(initial);
  return PlainWeight(initial);
}

Convolution::Convolution(const ConvolutionShape& shape, WeightKind kind, const Matrix<float>& initial, bool with_bias)
    : shape_(shape),
      weight_(make(kind, initial)),
      used_(initial),
      bias_("bias", with_bias ? shape.outputs : 0, false) {}

/// A block's matrix of patches stays in a second-level cache, and is large enough for a product at full speed.
Index Convolution::images_at_once() const { return std::max<Index>(1, 784 / (shape_.height * shape_.width)); }

void Convolution::forward(const Device& device, const Planes& x, Planes y) {
  std::visit([&](auto& w) { w.materialize(device, used_); }, weight_);
  const Bordered bordered{shape_.inputs, shape_.height, shape_.width, shape_.kernel / 2};
  for_each_range(device, x.dimension(0), images_at_once(), [&](Index begin, Index count) {
    Scratch& scratch = Scratch::of_thread();
    spread(x, begin, count, 1, bordered, scratch.padded);
    const Map columns = patches(scratch.padded, count, bordered, shape_.kernel, shape_.stride, scratch.columns);
    Map product(room(scratch.product, shape_.outputs * columns.cols()), shape_.outputs, columns.cols());
    product.noalias() = used_ * columns;
    if (bias_.size() > 0) product.colwise() += Eigen::Map<Eigen::VectorXf>(bias_.value(), shape_.outputs);
    put(product, y, begin, count);
  });
}

void Convolution::backward(const Device& device, const Planes& dy, const Planes& x, Planes dx) {
  turn_round();
  run_backward(device, dy, x, &dx);
}
void Convolution::backward(const Device& device, const Planes& dy, const Planes& x) {
  run_backward(device, dy, x, nullptr);
}

/// turned_(input, (output, tap)) = used_(output, (input, the opposite tap))
void Convolution::turn_round() {
  const Index taps = shape_.taps();
  turned_.resize(shape_.inputs, shape_.outputs * taps);
  for (Index o = 0; o < shape_.outputs; ++o)
    for (Index i = 0; i < shape_.inputs; ++i)
      std::reverse_copy(&used_(o, i * taps), &used_(o, i * taps) + taps, &turned_(i, o * taps));
}

void Convolution::run_backward(const Device& device, const Planes& dy, const Planes& x, Planes* dx) {
  const Bordered bordered{shape_.outputs, shape_.height, shape_.width, shape_.kernel / 2};
  const Index at_once = images_at_once();
  parts_.resize(std::size_t((x.dimension(0) + at_once - 1) / at_once));
  for_each_range(device, x.dimension(0), at_once, [&](Index begin, Index count) {
    Scratch& scratch = Scratch::of_thread();
    Part& part = parts_[std::size_t(begin / at_once)];
    spread(dy, begin, count, shape_.stride, bordered, scratch.padded);
    const Map columns = patches(scratch.padded, count, bordered, shape_.kernel, 1, scratch.columns);
    const Map rows = take(x, begin, count, scratch.rows);
    part.turned.noalias() = rows * columns.transpose();
    if (bias_.size() > 0) part.bias = sum_of_channels(dy, begin, count);
    if (dx == nullptr) return;
    Map product(room(scratch.product, shape_.inputs * columns.cols()), shape_.inputs, columns.cols());
    product.noalias() = turned_ * columns;
    put(product, *dx, begin, count);
  });
  add_parts(device);
}

/// The blocks' gradients in their order, turned back.
void Convolution::add_parts(const Device& device) {
  const Index taps = shape_.taps();
  Matrix<float> turned = parts_[0].turned, gradient(used_.rows(), used_.cols());
  for (std::size_t b = 1; b < parts_.size(); ++b) turned += parts_[b].turned;
  for (Index o = 0; o < shape_.outputs; ++o)
    for (Index i = 0; i < shape_.inputs; ++i)
      std::reverse_copy(&turned(i, o * taps), &turned(i, o * taps) + taps, &gradient(o, i * taps));
  std::visit([&](auto& w) { w.backward(device, gradient); }, weight_);
  if (bias_.size() == 0) return;
  for (const Part& part : parts_) Eigen::Map<Eigen::VectorXf>(bias_.gradient(), shape_.outputs) += part.bias;
}

void Convolution::for_each_parameter(const Visitor& f) {
  const auto visit = [&](ek::ParameterRef<float> p) { f(p, p.size > shape_.outputs ? shape_.outputs : 1); };
  std::visit([&](auto& w) { w.for_each_parameter(visit); }, weight_);
  if (bias_.size() > 0) f(bias_.ref(), 1);
}

}  // namespace nn
