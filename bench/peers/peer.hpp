#pragma once

// What bench/compare.cpp asks of each library that it times. A peer is a shared library of its own with one function,
// `extern "C" peers::Peer* evenkeel_bench_peer()`, so that libraries that bring copies of each other stay apart.

#include <functional>
#include <memory>
#include <string>

namespace peers {

enum class Norm { layer_norm, rms_norm, batch_norm, batch_norm_inference, group_norm, weight_norm };
enum class Pass { forward, backward };
enum class Type { float32, bfloat16 };

/// Rows are (n, c) with space 1; images (n, c, space). WeightNorm has n rows of c, each with a length g.
struct Operation {
  Norm norm;
  Pass pass;
  Type type;
  long n, c, space, groups;

  long size() const { return n * c * space; }
  /// Activations, or weights of WeightNorm, that must be read and written.
  int arrays() const { return pass == Pass::forward ? 2 : 3; }
  int bytes_per_value() const { return type == Type::float32 ? 4 : 2; }
};

/// x, dy, y, dx have the operation's type, all else is float. running_mean and running_var are for inference.
struct Buffers {
  void *x, *dy, *y, *dx;
  float *weight, *bias, *dweight, *dbias, *running_mean,
      *running_var;  // (c); WeightNorm: weight and dweight are g, (n)
};

/// `run` is timed. `collect`, if there is one, brings what the last run computed to the buffers.
struct Call {
  std::function<void()> run, collect = {};
};

class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string name() const = 0;
  virtual std::string version() const = 0;
  /// A call without `run` where the library has no such operation. A backward makes its forward here.
  virtual Call prepare(const Operation& operation, const Buffers& buffers) = 0;
};

}  // namespace peers

extern "C" peers::Peer* evenkeel_bench_peer();
