#pragma once

#include "evenkeel/distributed/mpi_communicator.hpp"
#include "nn/ranks.hpp"

namespace nn {

/// The processes of an MPI program: MPI_Init and MPI_Finalize are called here.
class MpiRanks final : public Ranks {
 public:
  MpiRanks(int& argc, char**& argv) : session_(argc, argv), communicator_(MPI_COMM_WORLD) {}

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  Request start_all_gather(const double* send, double* receive, Index count) override {
    return under_way(communicator_.start_all_gather(send, receive, count));
  }
  Request start_all_reduce_sum(double* values, Index count) override {
    return under_way(communicator_.start_all_reduce_sum(values, count));
  }
  using Ranks::all_reduce_sum;
  void all_reduce_sum(float* values, Index count) override {
    MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  [[noreturn]] void abort(int status) override {
    MPI_Abort(MPI_COMM_WORLD, status);
    std::abort();
  }

 private:
  struct Session {
    Session(int& argc, char**& argv) { MPI_Init(&argc, &argv); }
    Session(const Session&) = delete;
    ~Session() { MPI_Finalize(); }
  };
  struct MpiExchange final : Exchange {
    explicit MpiExchange(ek::MpiCommunicator::Request r) : request(std::move(r)) {}
    void wait() override { request.wait(); }
    ek::MpiCommunicator::Request request;
  };
  static Request under_way(ek::MpiCommunicator::Request request) {
    return Request(std::make_unique<MpiExchange>(std::move(request)));
  }

  Session session_;
  ek::MpiCommunicator communicator_;
};

}  // namespace nn
