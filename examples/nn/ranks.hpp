#pragma once

#include "nn/matrix.hpp"

#include <cstdlib>
#include <memory>
#include <utility>

namespace nn {

/// The processes that train together, whatever carries their messages: an ek::OverlappingCommunicator chosen at run time,
/// and what a data-parallel trainer needs beside one.
class Ranks {
 public:
  /// An exchange under way.
  struct Exchange {
    virtual ~Exchange() = default;
    virtual void wait() = 0;
  };
  class Request {
   public:
    explicit Request(std::unique_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
    void wait() { exchange_->wait(); }

   private:
    std::unique_ptr<Exchange> exchange_;
  };

  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Request start_all_gather(const double* send, double* receive, Index count) = 0;
  virtual Request start_all_reduce_sum(double* values, Index count) = 0;
  void all_gather(const double* send, double* receive, Index count) { start_all_gather(send, receive, count).wait(); }
  void all_reduce_sum(double* values, Index count) { start_all_reduce_sum(values, count).wait(); }

  /// Each of the `count` values becomes its sum over the ranks.
  virtual void all_reduce_sum(float* values, Index count) = 0;
  /// Ends all ranks at once, this one included: an error that the others know nothing of.
  [[noreturn]] virtual void abort(int status) = 0;
};

/// Whether mpirun, or what does its work, has started this process.
inline bool under_mpirun() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

}  // namespace nn
