#include "evenkeel/init/fans.hpp"
#include "support/catch.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

namespace ek = evenkeel;
using support::contains_text;

namespace {

void check(ek::Fans fans, ek::Index in, ek::Index out) {
  CHECK(fans.in == in);
  CHECK(fans.out == out);
}

}  // namespace

TEST_CASE("fans_of multiplies inputs and outputs of one group by the receptive field") {
  SECTION("dense, both layouts") {
    check(ek::fans_of({5, 7}, {.input = {1}, .output = {0}}), 7, 5);
    check(ek::fans_of({5, 7}, {.input = {0}, .output = {1}}), 5, 7);
    check(ek::fans_of_linear(7, 5), 7, 5);
  }
  SECTION("convolution (out, in / groups, kernel) and the same one stored (kernel, in / groups, out)") {
    check(ek::fans_of({8, 4, 3, 3}, {.input = {1}, .output = {0}}), 36, 72);
    check(ek::fans_of({3, 3, 4, 8}, {.input = {2}, .output = {3}}), 36, 72);
    check(ek::fans_of({3, 3, 4, 8}, {.input = {-2}, .output = {-1}}), 36, 72);
    check(ek::fans_of({256, 256, 3, 3}, {.input = {1}, .output = {0}}), 2304, 2304);
  }
  SECTION("groups") {
    check(ek::fans_of({4, 1, 9}, {.input = {1}, .output = {0}, .groups = 4}), 9, 9);
    check(ek::fans_of({32, 1, 3, 3}, {.input = {1}, .output = {0}, .groups = 32}), 9, 9);
    check(ek::fans_of({6, 4, 5}, {.input = {1}, .output = {0}, .groups = 2}), 20, 15);
  }
  SECTION("transposed convolution (in, out / groups, kernel)") {
    check(ek::fans_of({4, 8, 3, 3}, {.input = {0}, .output = {1}}), 36, 72);
    check(ek::fans_of({4, 8, 3}, {.input = {0}, .output = {1}, .groups = 2, .grouped = ek::GroupedAxis::input}), 6, 24);
  }
  SECTION("several axes: a projection to heads (features, heads, head size)") {
    check(ek::fans_of({64, 4, 16}, {.input = {0}, .output = {1, 2}}), 64, 64);
    check(ek::fans_of({4, 16, 32}, {.input = {0, 1}, .output = {2}}), 64, 32);
  }
  SECTION("the shape of a tensor") {
    const Eigen::Tensor<float, 3> weight(8, 4, 3);
    check(ek::fans_of(weight.dimensions(), {.input = {1}, .output = {0}}), 12, 24);
  }
  SECTION("an empty weight") {
    check(ek::fans_of({5, 0}, {.input = {1}, .output = {0}}), 0, 5);
    check(ek::fans_of_linear(0, 5), 0, 5);
  }
}

TEST_CASE("fans_of says what is wrong with the axes") {
  const auto error = [](std::initializer_list<ek::Index> shape, const ek::FanAxes& axes, const char* text) {
    CHECK_THROWS_AS(ek::fans_of(shape, axes), ek::ShapeError);
    CHECK_THROWS_WITH(ek::fans_of(shape, axes), text);
  };
  error({7}, {.input = {0}, .output = {0}}, "fans_of: shape has 1 axis, a fan needs at least two axes (shape is 7)");
  error({}, {.input = {0}, .output = {1}}, "fans_of: shape has 0 axes, a fan needs at least two axes (shape is ())");
  error({5, -7}, {.input = {0}, .output = {1}}, "fans_of: shape has extent -7, expected at least 0 (shape is 5x-7)");
  error({5, 7}, {.input = {2}, .output = {1}},
        "fans_of: axes.input names axis 2, expected one from -2 to 1 (shape is 5x7)");
  error({5, 7}, {.input = {0}, .output = {-3}},
        "fans_of: axes.output names axis -3, expected one from -2 to 1 (shape is 5x7)");
  error({5, 7}, {.input = {1}, .output = {-1}},
        "fans_of: axes.output names axis -1, which is named already, expected every axis at most once (shape is 5x7)");
  error({5, 7, 3}, {.input = {1, 1}, .output = {0}},
        "fans_of: axes.input names axis 1, which is named already, expected every axis at most once (shape is 5x7x3)");
  error({5, 7}, {.input = {1}}, "fans_of: axes.output names no axis, expected at least one (shape is 5x7)");
  error({5, 7}, {.output = {1}}, "fans_of: axes.input names no axis, expected at least one (shape is 5x7)");
  error({6, 4, 3}, {.input = {1}, .output = {0}, .groups = 4},
        "fans_of: axes.groups is 4, expected a divisor of the 6 outputs (shape is 6x4x3)");
  error({6, 4, 3}, {.input = {0}, .output = {1}, .groups = 4, .grouped = ek::GroupedAxis::input},
        "fans_of: axes.groups is 4, expected a divisor of the 6 inputs (shape is 6x4x3)");
  error({6, 4, 3}, {.input = {1}, .output = {0}, .groups = 0},
        "fans_of: axes.groups is 0, expected a divisor of the 6 outputs (shape is 6x4x3)");
  CHECK_THROWS_WITH(ek::fans_of_linear(-1, 5), "fans_of_linear: in is -1, expected at least 0");
  CHECK_THROWS_WITH(ek::fans_of_linear(1, -5), "fans_of_linear: out is -5, expected at least 0");
}

TEST_CASE("fans start at 0, and a layer without inputs or outputs has fans", "[init]") {
  CHECK(ek::Fans{}.in == 0);
  CHECK(ek::Fans{}.out == 0);
  CHECK(ek::fans_of_linear(3, 0).in == 3);
  CHECK(ek::fans_of_linear(3, 0).out == 0);
  CHECK(ek::fans_of_linear(0, 4).in == 0);
  CHECK(ek::fans_of_linear(0, 4).out == 4);
}
