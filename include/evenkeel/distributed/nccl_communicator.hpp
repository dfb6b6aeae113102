/// Ranks that are CUDA devices, through NCCL. Needs NCCL's header and library, and nothing else in evenkeel includes it.
#pragma once

#include "evenkeel/distributed/communicator.hpp"
#include "evenkeel/error.hpp"

#include <nccl.h>

#include <cstddef>

namespace evenkeel {

/// The ranks of an ncclComm_t, which stays the caller's, as does the stream: the one that the norms run in.
///
///     ek::CudaStream device(stream);
///     ek::NcclCommunicator communicator(nccl, stream);
///     ek::SyncBatchNorm<float, ek::NcclCommunicator, ek::Identity, ek::CudaStorage> norm(communicator, channels);
///     norm.saved.reserve(device, x, norm.options(), communicator);
///     norm.forward(device, x, y);
///
/// Messages lie in the device's memory and travel in the stream: calls return at once and may be captured in a CUDA graph.
/// Between a norm's start_forward and finish() there is room for work in other streams. No host learns there that the call
/// of another rank has failed: what is written is NaN then, running statistics and parameters' gradients stay, and the rank
/// that throws ends the communicator (ncclCommAbort), since the others go on to their next exchange. Errors of NCCL throw
/// RankError.
class NcclCommunicator {
 public:
  NcclCommunicator(ncclComm_t communicator, cudaStream_t stream) : communicator_(communicator), stream_(stream) {
    check(ncclCommUserRank(communicator, &rank_), "ncclCommUserRank");
    check(ncclCommCount(communicator, &size_), "ncclCommCount");
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  cudaStream_t stream() const { return stream_; }

  void all_gather(const double* send, double* receive, Index count) {
    check(ncclAllGather(send, receive, static_cast<std::size_t>(count), ncclDouble, communicator_, stream_),
          "ncclAllGather");
  }
  void all_reduce_sum(double* values, Index count) {
    check(ncclAllReduce(values, values, static_cast<std::size_t>(count), ncclDouble, ncclSum, communicator_, stream_),
          "ncclAllReduce");
  }

 private:
  static void check(ncclResult_t status, const char* call) {
    if (status == ncclSuccess) return;
    throw RankError(detail::error_text("NcclCommunicator", call, ": ", ncclGetErrorString(status)));
  }

  ncclComm_t communicator_;
  cudaStream_t stream_;
  int rank_ = 0, size_ = 1;
};

}  // namespace evenkeel
