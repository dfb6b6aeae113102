/// Ranks that are processes of an MPI program. Needs MPI's header and library, which the CMake target evenkeel::mpi
/// brings; nothing else in evenkeel includes it.
#pragma once

#include "evenkeel/distributed/communicator.hpp"
#include "evenkeel/error.hpp"

#include <mpi.h>

#include <limits>
#include <utility>

namespace evenkeel {

/// The ranks of an MPI_Comm, which stays the caller's, as MPI_Init and MPI_Finalize do.
///
///     MPI_Init(&argc, &argv);
///     ek::MpiCommunicator communicator(MPI_COMM_WORLD);
///     ek::SyncBatchNorm<float, ek::MpiCommunicator> norm(communicator, channels);
///
/// For the CPU: messages lie in the host's memory. MPI's own errors end the program, which is MPI's default, or throw
/// RankError where the MPI_Comm returns them. The sums of all_reduce_sum are MPI_Iallreduce's.
class MpiCommunicator {
 public:
  /// Throws StateError before MPI_Init.
  explicit MpiCommunicator(MPI_Comm communicator) : communicator_(communicator) {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (!initialized) detail::throw_state_error("MpiCommunicator", "got a call before MPI_Init, expected one after it");
    check(MPI_Comm_rank(communicator, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(communicator, &size_), "MPI_Comm_size");
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// An exchange under way.
  class Request {
   public:
    explicit Request(MPI_Request request) : request_(request) {}
    /// Takes over the exchange.
    Request(Request&& other) noexcept : request_(std::exchange(other.request_, MPI_REQUEST_NULL)) {}
    Request& operator=(Request&&) = delete;
    ~Request() { MPI_Wait(&request_, MPI_STATUS_IGNORE); }
    void wait() { check(MPI_Wait(&request_, MPI_STATUS_IGNORE), "MPI_Wait"); }

   private:
    MPI_Request request_;
  };

  // MPI does not match a blocking call of one rank with a nonblocking one of another, and a rank may start what another
  // does at a stroke: so all of them are nonblocking.
  void all_gather(const double* send, double* receive, Index count) { start_all_gather(send, receive, count).wait(); }
  void all_reduce_sum(double* values, Index count) { start_all_reduce_sum(values, count).wait(); }
  Request start_all_gather(const double* send, double* receive, Index count) {
    const int n = checked(count);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgather(send, n, MPI_DOUBLE, receive, n, MPI_DOUBLE, communicator_, &request), "MPI_Iallgather");
    return Request(request);
  }
  Request start_all_reduce_sum(double* values, Index count) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallreduce(MPI_IN_PLACE, values, checked(count), MPI_DOUBLE, MPI_SUM, communicator_, &request),
          "MPI_Iallreduce");
    return Request(request);
  }

 private:
  static int checked(Index count) {
    if (count > std::numeric_limits<int>::max())
      throw RankError(detail::error_text("MpiCommunicator", "a message has ", count, " values, MPI counts in int"));
    return static_cast<int>(count);
  }
  static void check(int status, const char* call) {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(status, text, &length);
    throw RankError(detail::error_text("MpiCommunicator", call, ": ", static_cast<const char*>(text)));
  }

  MPI_Comm communicator_;
  int rank_ = 0, size_ = 1;
};

}  // namespace evenkeel
