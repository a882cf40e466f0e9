/* Open MPI's own operations on MPI_FLOAT, back to back. Usage: mpi_collectives OUT QUICK(0|1) SIZES... */
#include "peer.h"

#include "../harness/collective_data.h"

static int rank, ranks;

static void call_once(enum bench_operation operation, float* out, float* in, int count) {
  int const part = count / ranks;
  switch (operation) {
    case bench_all_reduce: MPI_Allreduce(MPI_IN_PLACE, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case bench_all_gather: MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD); break;
    case bench_broadcast: MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case bench_reduce_scatter:
      MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case bench_all_to_all: MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD); break;
  }
}

static void checked_call(enum bench_operation operation, float* out, float* in, size_t count) {
  size_t const gets = bench_counts_out(operation, count, (size_t)ranks);
  bench_give(operation, in, bench_counts_in(operation, count, (size_t)ranks), rank);
  if (out != in) {
    for (size_t i = 0; i < gets; ++i) out[i] = -1.0f;
  }
  call_once(operation, out, in, (int)count);
  peer_require(bench_is_right(operation, out, gets, rank, ranks), "wrong result");
}

static void run(enum bench_operation operation, size_t bytes, char const* file, int quick) {
  size_t const count = bytes / sizeof(float);
  float* const in = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  float* const out = bench_in_place(operation) ? in : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  checked_call(operation, out, in, count);
  size_t const batch = bench_batch(bytes);
  size_t const taken = bench_samples(bytes, quick);
  double* const samples = malloc(taken * sizeof *samples);
  for (size_t i = 0; i < 2 * batch; ++i) call_once(operation, out, in, (int)count);
  struct peer_costs const before = peer_costs_now();
  for (size_t s = 0; s < taken; ++s) {
    double const start = peer_now_us();
    for (size_t i = 0; i < batch; ++i) call_once(operation, out, in, (int)count);
    samples[s] = (peer_now_us() - start) / (double)batch;
  }
  struct peer_row const row = {"collectives", "open_mpi", bench_operation_name(operation), bytes, 0};
  peer_append(file, &row, samples, taken, taken * batch, before, peer_costs_now());
  checked_call(operation, out, in, count);
  free(samples);
  if (out != in) free(out);
  free(in);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  peer_require(argc >= 4, "usage: mpi_collectives OUT QUICK SIZES...");
  for (int i = 0; i < bench_first_barriers; ++i) MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 3; i < argc; ++i) {
    for (int operation = bench_all_reduce; operation <= bench_all_to_all; ++operation)
      run((enum bench_operation)operation, strtoull(argv[i], NULL, 10), argv[1], atoi(argv[2]));
  }
  MPI_Finalize();
  return 0;
}
