#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include <crossrank/crossrank.hpp>
#include <crossrank/mpi.hpp>

/// Connects once with a communicator of this program, which owns MPI, and once by the name of the backend.
int main(int argc, char** argv) {
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 1;
  long sum = 0;
  {
    auto const by_handle = crossrank::mpi::connect(MPI_COMM_WORLD);
    auto const by_name = crossrank::connect({.backend = "mpi"});
    std::vector<long> values{by_handle.rank() + 1L};
    by_handle.all_reduce(std::span(values));
    by_name.all_reduce(std::span(values));
    sum = values.front();
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) std::printf("crossrank %s joined %ld\n", CROSSRANK_VERSION, sum);
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}
