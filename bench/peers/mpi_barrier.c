/* Back-to-back MPI_Barrier. Usage: mpi_barrier OUT QUICK(0|1) */
#include "peer.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  peer_require(argc == 3, "usage: mpi_barrier OUT QUICK");
  size_t const batch = 64;
  size_t const count = bench_samples(0, atoi(argv[2]));
  double* const samples = malloc(count * sizeof *samples);
  for (int i = 0; i < 1000; ++i) MPI_Barrier(MPI_COMM_WORLD);
  struct peer_costs const before = peer_costs_now();
  for (size_t s = 0; s < count; ++s) {
    double const start = peer_now_us();
    for (size_t i = 0; i < batch; ++i) MPI_Barrier(MPI_COMM_WORLD);
    samples[s] = (peer_now_us() - start) / (double)batch;
  }
  struct peer_row const row = {"barrier", "mpi_barrier", "warm", 0, 0};
  peer_append(argv[1], &row, samples, count, count * batch, before, peer_costs_now());
  free(samples);
  MPI_Finalize();
  return 0;
}
