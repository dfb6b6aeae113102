#pragma once

#include "evenkeel/norms/weight_norm.hpp"
#include "evenkeel/norms/weight_standardization.hpp"
#include "evenkeel/parameter.hpp"
#include "nn/matrix.hpp"
#include "nn/planes.hpp"

#include <functional>
#include <variant>
#include <vector>

namespace nn {

/// What a convolution makes of what: square kernels of odd size, padded so that stride 1 keeps height and width.
struct ConvolutionShape {
  Index inputs, outputs;
  Index height, width;  ///< of the input
  Index kernel = 3, stride = 1;

  Index out_height() const { return (height - 1) / stride + 1; }
  Index out_width() const { return (width - 1) / stride + 1; }
  Index taps() const { return kernel * kernel; }
};

enum class WeightKind { plain, weight_norm, scaled_standardization };

/// y = w * x + bias over images (images, channels, height * width), w (outputs, inputs * kernel * kernel).
///
/// Forward: patches are laid out as columns of one matrix, and w multiplies it. Backward does the same with dy, spread
/// over the input's positions: one matrix of patches gives dx, by the weights turned round, and the weight's gradient, by
/// x. Images are taken in blocks of a fixed number, so results do not depend on the threads.
class Convolution {
 public:
  /// f(parameter, output units): the first axis of the weight; a vector is one unit.
  using Visitor = std::function<void(ek::ParameterRef<float>, Index)>;

  Convolution(const ConvolutionShape& shape, WeightKind kind, const Matrix<float>& initial, bool with_bias);

  void forward(const Eigen::ThreadPoolDevice& device, const Planes& x, Planes y);
  /// dx is written, gradients are accumulated.
  void backward(const Eigen::ThreadPoolDevice& device, const Planes& dy, const Planes& x, Planes dx);
  /// Only the gradients of the parameters: for the first layer.
  void backward(const Eigen::ThreadPoolDevice& device, const Planes& dy, const Planes& x);

  void for_each_parameter(const Visitor& f);
  const ConvolutionShape& shape() const { return shape_; }

 private:
  /// A weight that is used as it is.
  class PlainWeight {
   public:
    explicit PlainWeight(const Matrix<float>& initial);
    void materialize(const Eigen::ThreadPoolDevice& device, Matrix<float>& w);
    void backward(const Eigen::ThreadPoolDevice& device, const Matrix<float>& dw);
    template <class F>
    void for_each_parameter(F&& f) {
      f(weight_.ref());
    }

   private:
    ek::Parameter<float> weight_;
  };
  using Weight = std::variant<PlainWeight, ek::WeightNorm<float>, ek::ScaledWeightStandardization<float>>;
  struct Part {
    Matrix<float> turned;
    Eigen::VectorXf bias;
  };

  static Weight make(WeightKind kind, const Matrix<float>& initial);
  Index images_at_once() const;
  void turn_round();
  void run_backward(const Eigen::ThreadPoolDevice& device, const Planes& dy, const Planes& x, Planes* dx);
  void add_parts(const Eigen::ThreadPoolDevice& device);

  ConvolutionShape shape_;
  Weight weight_;
  Matrix<float> used_;         // (outputs, inputs * taps)
  Matrix<float> turned_;       // (inputs, outputs * taps)
  ek::Parameter<float> bias_;  // (outputs), or none
  std::vector<Part> parts_;    // the gradients of each block
};

}  // namespace nn
