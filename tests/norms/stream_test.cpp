// Outputs that are large and aligned are written past the cache. Beside them, the same outputs one element further on,
// which are not.
#include "evenkeel/init/random.hpp"
#include "evenkeel/norms/batch_norm.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "support/catch.hpp"

#include <cstring>
#include <vector>

namespace {

namespace ek = evenkeel;
using ek::Index;
using Rows = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
using Images = Eigen::TensorMap<Eigen::Tensor<float, 3, Eigen::RowMajor>>;

constexpr Index count = EVENKEEL_STREAM_BYTES / Index(sizeof(float)) + 4096;  // room for a last row
static_assert(EVENKEEL_STREAM_BACKWARD_BYTES <= EVENKEEL_STREAM_BYTES);

/// A buffer of `count` values from an aligned address on, or from one element after it on.
class Output {
 public:
  explicit Output(bool aligned) : shift_(aligned ? 0 : 1) { memory_.reserve(count + 1); }
  float* data() { return memory_.data() + shift_; }

 private:
  ek::HostBuffer<float> memory_;
  Index shift_;
};

bool same(Output& a, Output& b, Index size) {
  return std::memcmp(a.data(), b.data(), std::size_t(size) * sizeof(float)) == 0;
}

struct Data {
  std::vector<float> x = std::vector<float>(std::size_t(count)), dy = x;
  Output y{true}, y_shifted{false}, dx{true}, dx_shifted{false};

  Data() {
    ek::RandomStream(1, "x").fill_normal(x.data(), count, 3, 2);
    ek::RandomStream(1, "dy").fill_normal(dy.data(), count);
  }
};

// Through the two outputs, `size` values each: forward(y), backward(dx).
template <class Forward, class Backward>
void check(Data& data, Index size, const Forward& forward, const Backward& backward) {
  REQUIRE(size * Index(sizeof(float)) >= EVENKEEL_STREAM_BYTES);
  forward(data.y.data());
  forward(data.y_shifted.data());
  CHECK(same(data.y, data.y_shifted, size));
  backward(data.dx.data());
  backward(data.dx_shifted.data());
  CHECK(same(data.dx, data.dx_shifted, size));
}

TEST_CASE("norms: rows written past the cache are those written through it", "[norms]") {
  Data data;
  for (const Index length : {1024, 1028}) {  // whole packs; an overlapping one at the end
    INFO("rows of " << length);
    const Index rows = count / length;
    const Eigen::ArrayXf weight = Eigen::ArrayXf::LinSpaced(length, 0.5f, 1.5f), bias = weight - 1;
    Eigen::ArrayXf dweight = weight, dbias = bias;
    const auto matrix = [&](float* p) { return Rows(p, rows, length); };
    ek::LayerNormSaved<float> saved;
    check(
        data, rows * length,
        [&](float* y) { ek::layer_norm(ek::serial, matrix(data.x.data()), weight, bias, matrix(y), saved); },
        [&](float* dx) {
          ek::layer_norm_backward(ek::serial, matrix(data.dy.data()), matrix(data.x.data()), weight, saved, matrix(dx),
                                  dweight, dbias, ek::GradientMode::overwrite);
        });
  }
}

TEMPLATE_TEST_CASE("norms: small scalars written past the cache are those written through it", "[norms]", Eigen::half,
                   Eigen::bfloat16) {
  const Index length = 1024, rows = EVENKEEL_STREAM_BYTES / Index(sizeof(TestType)) / length, size = rows * length;
  const std::vector<TestType> x = [&] {
    std::vector<float> values(static_cast<std::size_t>(size));
    ek::RandomStream(1, "x").fill_normal(values.data(), size, 3, 2);
    return std::vector<TestType>(values.begin(), values.end());
  }();
  using Matrix = Eigen::Array<TestType, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  ek::HostBuffer<TestType> memory, shifted;  // the second from one element after an aligned address on
  memory.reserve(size), shifted.reserve(size + 1);
  const auto forward = [&](TestType* y) {
    ek::layer_norm(ek::serial, Eigen::Map<const Matrix>(x.data(), rows, length), ek::none, ek::none,
                   Eigen::Map<Matrix>(y, rows, length), ek::none);
  };
  forward(memory.data());
  forward(shifted.data() + 1);
  CHECK(std::memcmp(memory.data(), shifted.data() + 1, std::size_t(size) * sizeof(TestType)) == 0);
}

TEST_CASE("norms: channels written past the cache are those written through it", "[norms]") {
  Data data;
  for (const Index space : {Index(1), Index(4096)}) {
    INFO("positions " << space);
    const Index channels = 128, samples = count / channels / space;
    const Eigen::ArrayXf weight = Eigen::ArrayXf::LinSpaced(channels, 0.5f, 1.5f), bias = weight - 1;
    Eigen::ArrayXf dweight = weight, dbias = bias;
    const auto images = [&](float* p) { return Images(p, samples, channels, space); };
    ek::BatchNormSaved<float> saved;
    check(
        data, samples * channels * space,
        [&](float* y) { ek::batch_norm(ek::serial, images(data.x.data()), weight, bias, images(y), saved); },
        [&](float* dx) {
          ek::batch_norm_backward(ek::serial, images(data.dy.data()), images(data.x.data()), weight, saved, images(dx),
                                  dweight, dbias, ek::GradientMode::overwrite);
        });
  }
}

}  // namespace
