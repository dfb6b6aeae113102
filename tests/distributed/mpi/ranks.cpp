// SyncBatchNorm over the processes of mpirun. Each rank checks its part; one that finds something wrong says so and exits
// with 1.
//
//   mpirun -n 3 mpi_ranks          the checks of rank_checks.hpp
//   mpirun -n 3 mpi_ranks exits    the last rank ends (exits, exits_with_0, throws) while the others wait for it
#include "distributed/rank_checks.hpp"
#include "evenkeel/distributed/mpi_communicator.hpp"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

using namespace distributed_test;

namespace {

bool before_init_is_an_error() {
  try {
    ek::MpiCommunicator communicator(MPI_COMM_WORLD);
  } catch (const ek::StateError&) {
    return true;
  }
  return false;
}

// A communicator of the caller's own, whose errors are returned.
std::string check_own_communicator() {
  MPI_Comm own = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &own);
  MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
  std::string wrong;
  {
    ek::MpiCommunicator communicator(own);
    double value = 1;
    communicator.all_reduce_sum(&value, 1);
    if (value != communicator.size()) wrong = "a sum over a duplicate is wrong; ";
    try {
      communicator.all_reduce_sum(&value, -1);
      wrong += "an error of MPI is not one here; ";
    } catch (const ek::RankError& e) {
      if (std::string(e.what()).find("MPI_Iallreduce") == std::string::npos) wrong += e.what();
    }
  }
  MPI_Comm_free(&own);
  return wrong;
}

std::string check_all(const ek::MpiCommunicator& communicator) {
  std::string wrong = check_own_communicator();
  Errors floats, doubles;
  for (const Shards& shards : all_shards(communicator.size())) {
    wrong += check_shards<float>(communicator, shards, floats);
    wrong += check_shards<double>(communicator, shards, doubles);
  }
  wrong += check_failures(communicator);
  if (communicator.size() > 1) wrong += check_counts(communicator);
  for (const auto& [name, e] : {std::pair("float", floats), std::pair("double", doubles)})
    std::printf("rank %d of %d, %s: y %.1e, dx %.1e, dweight %.1e, dbias %.1e, running %.1e\n", communicator.rank(),
                communicator.size(), name, e.y, e.dx, e.dweight, e.dbias, e.running);
  return wrong;
}

void end_early(ek::MpiCommunicator communicator, const std::string& way) {
  ek::SyncBatchNorm<float, ek::MpiCommunicator> norm(communicator, channels);
  const Data<float> x = normal_data<float>(2, 1, 0, 1);
  Data<float> y = x;
  norm.forward(ek::serial, x, y);
  std::printf("rank %d has made its first call\n", communicator.rank());
  std::fflush(stdout);
  MPI_Barrier(MPI_COMM_WORLD);
  if (communicator.rank() == communicator.size() - 1) {
    if (way == "exits") std::_Exit(3);
    if (way == "exits_with_0") std::exit(0);
    throw std::runtime_error("the last rank has an error of its own");
  }
  norm.forward(ek::serial, x, y);
  std::printf("rank %d has made its second call\n", communicator.rank());
}

}  // namespace

int main(int argc, char** argv) {
  const bool early = before_init_is_an_error();
  MPI_Init(&argc, &argv);
  const ek::MpiCommunicator communicator(MPI_COMM_WORLD);
  std::string wrong = early ? "" : "a communicator before MPI_Init is no error; ";
  if (argc > 1)
    end_early(communicator, argv[1]);
  else
    wrong += check_all(communicator);
  if (!wrong.empty()) std::printf("rank %d: %s\n", communicator.rank(), wrong.c_str());
  MPI_Finalize();
  return wrong.empty() ? 0 : 1;
}
