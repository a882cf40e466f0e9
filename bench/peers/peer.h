/* Timing, checks and output of the MPI programs. Rows have the format of bench/harness/harness.hpp. */
#pragma once
#define _GNU_SOURCE 1
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "../harness/consume.h"

static inline double peer_now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static inline void peer_require(int right, char const* what) {
  if (right) return;
  fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static inline int peer_by_value(void const* a, void const* b) {
  double const x = *(double const*)a;
  double const y = *(double const*)b;
  return (x > y) - (x < y);
}

struct peer_costs {
  long faults;
  long switches;
};

static inline struct peer_costs peer_costs_now(void) {
  struct rusage used;
  getrusage(RUSAGE_THREAD, &used);
  struct peer_costs const costs = {used.ru_minflt, used.ru_nvcsw + used.ru_nivcsw};
  return costs;
}

struct peer_row {
  char const* path;
  char const* who;
  char const* variant;
  size_t bytes;
  int reads;
};

/* Sorts the samples and appends one line to `out`. */
static inline void peer_append(char const* out, struct peer_row const* row, double* samples, size_t count, size_t calls,
                               struct peer_costs before, struct peer_costs after) {
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  qsort(samples, count, sizeof *samples, peer_by_value);
  size_t const last = count - 1;
  FILE* const file = fopen(out, "a");
  peer_require(file != NULL, "cannot open the result file");
  fprintf(file,
          "{\"path\":\"%s\",\"who\":\"%s\",\"variant\":\"%s\",\"rank\":%d,\"ranks\":%d,\"bytes\":%zu,\"reads\":%s,"
          "\"calls\":%zu,"
          "\"min_us\":%.4f,\"median_us\":%.4f,\"p99_us\":%.4f,\"faults\":%.4f,\"switches\":%.4f}\n",
          row->path, row->who, row->variant, rank, ranks, row->bytes, row->reads ? "true" : "false", calls, samples[0],
          samples[(size_t)(0.5 * (double)last + 0.5)], samples[(size_t)(0.99 * (double)last + 0.5)],
          (double)(after.faults - before.faults) / (double)calls,
          (double)(after.switches - before.switches) / (double)calls);
  peer_require(fclose(file) == 0, "cannot write the result file");
}
