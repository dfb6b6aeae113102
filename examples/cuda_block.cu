// A pre-norm block on a GPU, forward and backward in one CUDA graph:
//
//     y = x + W2 * silu(W1 * rms_norm(x)),  loss = sum(y * dy)
//
// evenkeel does the norm, its gradients and the initial weights; cuBLAS multiplies. The block runs once as plain calls
// and once as a graph, whose results must be the same bits; then the graph is timed.

#include "evenkeel/cuda.hpp"

#include <cublas_v2.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <vector>

namespace ek = evenkeel;

namespace {

constexpr int rows = 4096, width = 1024, hidden = 4 * width;

void check(cudaError_t status, const char* call) { ek::detail::check_cuda(status, "cuda_block", call); }
void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(cublasGetStatusString(status));
}

using Matrix = Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

/// A row-major matrix in the device's memory, zero at first.
struct DeviceMatrix {
  DeviceMatrix(int matrix_rows, int matrix_columns) : rows(matrix_rows), columns(matrix_columns) {
    memory.reserve(size());
  }
  float* data() { return memory.data(); }
  Matrix map() { return Matrix(data(), rows, columns); }
  ek::Index size() const { return ek::Index(rows) * columns; }
  int rows, columns;
  ek::CudaBuffer<float> memory;
};

__global__ void silu(const float* u, float* v, int size) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < size) v[i] = u[i] / (1 + expf(-u[i]));
}
__global__ void silu_backward(const float* dv, const float* u, float* du, int size) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= size) return;
  const float s = 1 / (1 + expf(-u[i]));
  du[i] = dv[i] * s * (1 + u[i] * (1 - s));
}

/// c = a * b, each transposed where asked for: row-major, so cuBLAS, whose matrices are column-major, sees c' = b' * a'.
void multiply(cublasHandle_t blas, DeviceMatrix& a, bool transpose_a, DeviceMatrix& b, bool transpose_b,
              DeviceMatrix& c, float add = 0) {
  const float one = 1;
  const int inner = transpose_a ? a.rows : a.columns;
  check(cublasSgemm(blas, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, c.columns,
                    c.rows, inner, &one, b.data(), b.columns, a.data(), a.columns, &add, c.data(), c.columns));
}

class Block {
 public:
  Block(const ek::CudaStream& stream, cublasHandle_t handle) : device(stream), blas(handle) {
    const auto random = [&](const char* name) { return ek::CudaRandom(device, ek::RandomStream(1, name)); };
    ek::normal(x.data(), x.size(), 0, 1, random("x"));
    ek::normal(dy.data(), dy.size(), 0, 1, random("dy"));
    ek::kaiming_normal(w1.data(), w1.size(), ek::fans_of_linear(width, hidden), random("w1"));
    ek::xavier_normal(w2.data(), w2.size(), ek::fans_of_linear(hidden, width), random("w2"));
    norm.saved.reserve(device, x.map());
  }

  /// Everything goes into the stream; nothing is allocated or waited for.
  void forward_and_backward() {
    const int size = rows * hidden, blocks = (size + 255) / 256;
    norm.forward(device, x.map(), normed.map());
    multiply(blas, normed, false, w1, false, u);
    silu<<<blocks, 256, 0, device.stream()>>>(u.data(), v.data(), size);
    check(cudaGetLastError(), "silu");
    multiply(blas, v, false, w2, false, branch);
    ek::residual_sum(device, x.map(), branch.map(), y.map());

    multiply(blas, v, true, dy, false, dw2);
    multiply(blas, dy, false, w2, true, dv);
    silu_backward<<<blocks, 256, 0, device.stream()>>>(dv.data(), u.data(), du.data(), size);
    check(cudaGetLastError(), "silu_backward");
    multiply(blas, normed, true, du, false, dw1);
    multiply(blas, du, false, w1, true, dnormed);
    norm.backward(device, dnormed.map(), x.map(), dbranch.map(), ek::GradientMode::overwrite);
    ek::residual_sum(device, dy.map(), dbranch.map(), dx.map());
  }

  DeviceMatrix x{rows, width}, normed{rows, width}, u{rows, hidden}, v{rows, hidden}, branch{rows, width},
      y{rows, width}, dy{rows, width}, dv{rows, hidden}, du{rows, hidden}, dnormed{rows, width}, dbranch{rows, width},
      dx{rows, width}, w1{width, hidden}, w2{hidden, width}, dw1{width, hidden}, dw2{hidden, width};
  ek::RmsNorm<float, ek::CudaStorage> norm{width};

 private:
  ek::CudaStream device;
  cublasHandle_t blas;
};

std::vector<float> host_copy(DeviceMatrix& m) {
  std::vector<float> values(static_cast<std::size_t>(m.size()));
  check(cudaMemcpy(values.data(), m.data(), values.size() * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return values;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

int run() {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  cublasHandle_t blas;
  check(cublasCreate(&blas));
  check(cublasSetStream(blas, stream));
  Block block(ek::CudaStream(stream), blas);

  block.forward_and_backward();
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const std::vector<float> y = host_copy(block.y), dx = host_copy(block.dx), dw1 = host_copy(block.dw1);

  cudaGraph_t graph;
  cudaGraphExec_t step;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  block.forward_and_backward();
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&step, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphLaunch(step, stream), "cudaGraphLaunch");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const bool equal = same(y, host_copy(block.y)) && same(dx, host_copy(block.dx)) && same(dw1, host_copy(block.dw1));

  constexpr int steps = 100;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  check(cudaEventRecord(begin, stream), "cudaEventRecord");
  for (int k = 0; k < steps; ++k) check(cudaGraphLaunch(step, stream), "cudaGraphLaunch");
  check(cudaEventRecord(end, stream), "cudaEventRecord");
  check(cudaEventSynchronize(end), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  std::printf("the graph's results are %s as those of plain calls; %.3f ms a step of %d x %d\n",
              equal ? "the same bits" : "NOT the same", milliseconds / steps, rows, width);
  return equal ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda_block: %s\n", error.what());
    return 1;
  }
}
