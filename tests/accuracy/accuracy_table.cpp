// Prints how far the norms' float results lie from the exact ones, relative to the largest output of the row, and exits
// with 1 where that is more than 4e-7. Beside it PyTorch's error on the same data, where the interpreter that
// EVENKEEL_PYTHON names, or else python3, can import torch.
//
//     EVENKEEL_PYTHON=/path/to/python build/dev/tests/accuracy_table
//
// The hard rows have mean 1e4 and spread 1e-2: floats are 1e-3 apart there, so their mean is no float.
#include "evenkeel/evenkeel.hpp"
#include "support/data.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

namespace ek = evenkeel;
using Eigen::Index;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double bound = 4e-7;
constexpr Index rows = 64;

struct Data {
  const char* name;
  double mean, spread, eps;
};
// The variance of the hard rows is 1e-4, and a usual eps of 1e-5 would hide a part of its error.
constexpr Data kinds[] = {{"N(0,1)", 0, 1, 1e-5}, {"mean 1e4, spread 1e-2", 1e4, 1e-2, 1e-12}};

// Statistics are those of a row of x. The torch expression is of x and eps.
struct Norm {
  const char* name;
  bool centred;
  void (*forward)(const Matrix& x, Matrix& y, double eps);
  const char* torch;
};

void batch_norm(const Matrix& x, Matrix& y, double eps, int axis) {
  ek::BatchNormSaved<float> saved;
  ek::batch_norm(ek::serial, x, ek::none, ek::none, y, saved, {.eps = eps, .axis = axis});
}

// A row is one sample of 8 channels, all of them in one group.
void group_norm(const Matrix& x, Matrix& y, double eps) {
  using Sample = Eigen::Tensor<float, 3, Eigen::RowMajor>;
  const Index width = x.cols() / 8;
  const Eigen::TensorMap<const Sample> in(x.data(), x.rows(), 8, width);  // (rows, channels, positions)
  Eigen::TensorMap<Sample> out(y.data(), x.rows(), 8, width);             // (rows, channels, positions)
  ek::GroupNormSaved<float> saved;
  ek::group_norm(ek::serial, in, ek::none, ek::none, out, saved, {.groups = 1, .eps = eps});
}

// A new norm is one more entry here.
const Norm norms[] = {
    {"LayerNorm", true,
     [](const Matrix& x, Matrix& y, double eps) {
       ek::layer_norm(ek::serial, x, ek::none, ek::none, y, ek::none, {.eps = eps});
     },
     "F.layer_norm(x, x.shape[1:], None, None, eps)"},
    {"RMSNorm", false,
     [](const Matrix& x, Matrix& y, double eps) { ek::rms_norm(ek::serial, x, ek::none, y, ek::none, {.eps = eps}); },
     "F.rms_norm(x, x.shape[1:], None, eps)"},
    {"BatchNorm, samples x channels", true,
     [](const Matrix& x, Matrix& y, double eps) {
       const Matrix samples = x.transpose();
       Matrix out(samples.rows(), samples.cols());
       batch_norm(samples, out, eps, 1);
       y = out.transpose();
     },
     "F.batch_norm(x.T.contiguous(), None, None, None, None, True, 0.1, eps).T"},
    {"BatchNorm, channels x samples", true, [](const Matrix& x, Matrix& y, double eps) { batch_norm(x, y, eps, 0); },
     "F.batch_norm(x[None], None, None, None, None, True, 0.1, eps)[0]"},
    {"GroupNorm, one group", true, group_norm,
     "F.group_norm(x.reshape(x.shape[0], 8, -1), 1, eps=eps).reshape(x.shape)"},
};

// The largest |y - exact| over the largest |exact| of its row, the exact values in long double.
double error_of(const Norm& norm, const Matrix& x, const Matrix& y, double eps) {
  const auto n = static_cast<long double>(x.cols());
  // The eps that float code gets.
  const auto eps_of_float = static_cast<long double>(static_cast<float>(eps));
  double worst = 0;
  for (Index r = 0; r < x.rows(); ++r) {
    const auto at = [r](const Matrix& m, Index i) { return static_cast<long double>(m(r, i)); };
    long double mean = 0, square = 0, largest = 0, error = 0;
    for (Index i = 0; i < x.cols() && norm.centred; ++i) mean += at(x, i) / n;
    for (Index i = 0; i < x.cols(); ++i) square += (at(x, i) - mean) * (at(x, i) - mean);
    const long double root = std::sqrt(square / n + eps_of_float);
    for (Index i = 0; i < x.cols(); ++i) {
      const long double exact = (at(x, i) - mean) / root;
      if (std::isnan(y(r, i))) return INFINITY;
      largest = std::max(largest, std::abs(exact));
      error = std::max(error, std::abs(at(y, i) - exact));
    }
    worst = std::max(worst, static_cast<double>(error / largest));
  }
  return worst;
}

struct Input {
  Data data;
  Matrix x;
};

std::vector<Input> make_inputs() {
  std::vector<Input> inputs;
  for (const Data& data : kinds) {
    for (const Index width : {64, 768, 1000, 4096}) {
      Matrix x(rows, width);
      const auto values = support::normal<float>(std::size_t(x.size()), std::uint64_t(width), data.mean, data.spread);
      for (Index i = 0; i < x.size(); ++i) x.data()[i] = float(values[std::size_t(i)]);
      inputs.push_back({data, x});
    }
  }
  return inputs;
}

std::streamsize bytes(const Matrix& m) { return m.size() * std::streamsize(sizeof(float)); }

// What torch computes: for each input the y of every norm. Nothing where there is no torch. The numbers travel as raw
// floats in files.
std::vector<std::vector<Matrix>> torch_results(const std::vector<Input>& inputs) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("accuracy_table." + std::to_string(getpid()));
  fs::create_directory(folder);
  std::ofstream x_file(folder / "x", std::ios::binary), script(folder / "script.py");
  script << "import ctypes, torch, torch.nn.functional as F\n"
            "torch.set_num_threads(1)\n"
            "data, out = open('x', 'rb'), open('y', 'wb')\n";
  for (const Input& input : inputs) {
    x_file.write(reinterpret_cast<const char*>(input.x.data()), bytes(input.x));
    script << "x = torch.frombuffer(bytearray(data.read(" << bytes(input.x) << ")), dtype=torch.float32)\n"
           << "x, eps = x.reshape(" << input.x.rows() << ", -1), " << input.data.eps << "\n";
    for (const Norm& norm : norms)
      script << "y = (" << norm.torch << ").contiguous()\n"
             << "out.write(ctypes.string_at(y.data_ptr(), 4 * y.numel()))\n";
  }
  x_file.close();
  script.close();
  const char* const named = std::getenv("EVENKEEL_PYTHON");
  const std::string interpreter = named ? named : "python3";
  const std::string command = "cd '" + folder.string() + "' && '" + interpreter + "' script.py >log 2>&1";
  std::vector<std::vector<Matrix>> results;
  if (std::system(command.c_str()) == 0) {
    std::ifstream y_file(folder / "y", std::ios::binary);
    for (const Input& input : inputs) {
      results.emplace_back();
      for (std::size_t n = 0; n < std::size(norms); ++n) {
        Matrix y(input.x.rows(), input.x.cols());
        y_file.read(reinterpret_cast<char*>(y.data()), bytes(y));
        results.back().push_back(y);
      }
    }
    if (!y_file) results.clear();
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return results;
}

}  // namespace

int main() {
  const std::vector<Input> inputs = make_inputs();
  const auto torch = torch_results(inputs);
  bool right = true;
  std::printf("Error of float results over the largest output of their row; evenkeel's bound is %.0e.\n\n", bound);
  std::printf("%-31s %-22s %6s %9s %9s\n", "norm", "data", "width", "evenkeel", "torch");
  for (std::size_t n = 0; n < std::size(norms); ++n) {
    const Norm& norm = norms[n];
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto& [data, x] = inputs[i];
      Matrix y = Matrix::Constant(x.rows(), x.cols(), NAN);
      norm.forward(x, y, data.eps);
      const double error = error_of(norm, x, y, data.eps);
      char theirs[32] = "-";
      if (!torch.empty()) std::snprintf(theirs, sizeof theirs, "%.2g", error_of(norm, x, torch[i][n], data.eps));
      std::printf("%-31s %-22s %6td %9.2g %9s%s\n", norm.name, data.name, x.cols(), error, theirs,
                  error <= bound ? "" : "  over the bound");
      right = right && error <= bound;
    }
  }
  return right ? 0 : 1;
}
