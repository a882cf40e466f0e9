/* MPI_Gather and MPI_Gatherv to rank 0, each followed by MPI_Barrier, because our gather returns on the other ranks only
 * after rank 0 has consumed the result. Usage: mpi_gather OUT QUICK(0|1) SIZES...
 * Variants: MPI_Gather that copies the root's own part ("mpi_gather"), MPI_Gather in place ("mpi_gather_in_place"), and
 * MPI_Gatherv in place. The root then reads every byte, or the first word of each part. */
#include "peer.h"

enum operation { gather, gather_in_place, gatherv };
static char const* const names[] = {"mpi_gather", "mpi_gather_in_place", "mpi_gatherv"};

static int rank, ranks;

struct job {
  enum operation operation;
  int reads;
  size_t bytes;
  unsigned char* mine;
  unsigned char* all;
  int* counts;
  int* offsets;
  uint64_t* expected; /* sum of each rank's bytes without the stamp */
};

static void check(struct job const* job, uint64_t call) {
  for (int r = 1; r < ranks; ++r) {
    unsigned char const* const part = job->all + (size_t)r * job->bytes;
    peer_require(bench_read_stamp(part, job->bytes) == call, "received the bytes of another call");
    if (job->reads) peer_require(bench_sum(part, job->bytes) == job->expected[r] + call, "received wrong bytes");
  }
}

static void call_once(struct job const* job, uint64_t call) {
  bench_stamp(job->mine, job->bytes, call);
  int const count = (int)job->bytes;
  void const* const from = rank == 0 && job->operation != gather ? MPI_IN_PLACE : job->mine;
  if (job->operation == gatherv) {
    MPI_Gatherv(from, count, MPI_BYTE, job->all, job->counts, job->offsets, MPI_BYTE, 0, MPI_COMM_WORLD);
  } else {
    MPI_Gather(from, count, MPI_BYTE, job->all, count, MPI_BYTE, 0, MPI_COMM_WORLD);
  }
  if (rank == 0) check(job, call);
  MPI_Barrier(MPI_COMM_WORLD);
}

static void run(struct job const* job, char const* out, int quick) {
  size_t const batch = bench_batch(job->bytes);
  size_t const count = bench_samples(job->bytes, quick);
  double* const samples = malloc(count * sizeof *samples);
  uint64_t call = 1;
  for (size_t i = 0; i < 8 * batch; ++i) call_once(job, call++);
  struct peer_costs const before = peer_costs_now();
  for (size_t s = 0; s < count; ++s) {
    double const start = peer_now_us();
    for (size_t i = 0; i < batch; ++i) call_once(job, call++);
    samples[s] = (peer_now_us() - start) / (double)batch;
  }
  struct peer_row const row = {"gather", names[job->operation], "warm", job->bytes, job->reads};
  peer_append(out, &row, samples, count, count * batch, before, peer_costs_now());
  free(samples);
}

static void run_size(size_t bytes, char const* out, int quick) {
  struct job job = {.bytes = bytes};
  job.mine = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  bench_fill(job.mine, bytes, rank);
  size_t const all = (size_t)ranks * bytes;
  job.all = rank == 0 ? aligned_alloc(4096, (all + 4095) / 4096 * 4096) : NULL;
  if (job.all != NULL) memset(job.all, 0, all);
  job.counts = malloc((size_t)ranks * sizeof *job.counts);
  job.offsets = malloc((size_t)ranks * sizeof *job.offsets);
  job.expected = malloc((size_t)ranks * sizeof *job.expected);
  bench_stamp(job.mine, bytes, 0);
  uint64_t const sum = bench_sum(job.mine, bytes);
  MPI_Allgather(&sum, 1, MPI_UINT64_T, job.expected, 1, MPI_UINT64_T, MPI_COMM_WORLD);
  for (int r = 0; r < ranks; ++r) {
    job.counts[r] = (int)bytes;
    job.offsets[r] = (int)(bytes * (size_t)r);
  }
  for (job.reads = 0; job.reads <= 1; ++job.reads) {
    for (int operation = gather; operation <= gatherv; ++operation) {
      job.operation = (enum operation)operation;
      run(&job, out, quick);
    }
  }
  free(job.mine);
  free(job.all);
  free(job.counts);
  free(job.offsets);
  free(job.expected);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  peer_require(argc >= 4, "usage: mpi_gather OUT QUICK SIZES...");
  for (int i = 3; i < argc; ++i) {
    size_t const bytes = strtoull(argv[i], NULL, 10);
    peer_require(bytes >= 8 && bytes * (size_t)ranks < (1ull << 31), "a size exceeds the range of MPI counts");
    run_size(bytes, argv[1], atoi(argv[2]));
  }
  MPI_Finalize();
  return 0;
}
