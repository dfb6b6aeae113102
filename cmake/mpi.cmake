# evenkeel::mpi exists where MPI does: what evenkeel/distributed/mpi_communicator.hpp needs.
if(EVENKEEL_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C++ bindings that MPI dropped long ago
  find_package(MPI QUIET COMPONENTS CXX)
endif()

if(TARGET MPI::MPI_CXX)
  add_library(evenkeel_mpi INTERFACE)
  add_library(evenkeel::mpi ALIAS evenkeel_mpi)
  target_link_libraries(evenkeel_mpi INTERFACE evenkeel MPI::MPI_CXX)
endif()
