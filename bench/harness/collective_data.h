/* Input and expected output of each collective, the same for every contestant. C and C++. */
#pragma once
#include <stddef.h>

enum bench_operation { bench_all_reduce, bench_all_gather, bench_broadcast, bench_reduce_scatter, bench_all_to_all };

/* Barriers before the first operation, because the kernel needs some milliseconds to spread new processes over cores.
 */
enum { bench_first_barriers = 20000 };

static inline char const* bench_operation_name(enum bench_operation operation) {
  switch (operation) {
    case bench_all_reduce: return "all_reduce";
    case bench_all_gather: return "all_gather";
    case bench_broadcast: return "broadcast";
    case bench_reduce_scatter: return "reduce_scatter";
    case bench_all_to_all: return "all_to_all";
  }
  return "";
}

static inline int bench_in_place(enum bench_operation operation) {
  return operation == bench_all_reduce || operation == bench_broadcast;
}

/* Returns the number of elements that a rank contributes or receives when the whole has `count`. */
static inline size_t bench_counts_in(enum bench_operation operation, size_t count, size_t ranks) {
  return operation == bench_all_gather ? count / ranks : count;
}
static inline size_t bench_counts_out(enum bench_operation operation, size_t count, size_t ranks) {
  return operation == bench_reduce_scatter ? count / ranks : count;
}

/* Small integers, whose sums are exact in any order. */
static inline float bench_value(size_t index, int rank) { return (float)((index * 7 + (size_t)rank * 13) % 1001); }

static inline void bench_give(enum bench_operation operation, float* values, size_t count, int rank) {
  for (size_t i = 0; i < count; ++i)
    values[i] = operation == bench_broadcast && rank != 0 ? -1.0f : bench_value(i, rank);
}

static inline float bench_sum_of_ranks(size_t index, int ranks) {
  float sum = 0.0f;
  for (int r = 0; r < ranks; ++r) sum += bench_value(index, r);
  return sum;
}

/* Returns whether `values`, the result of the operation on `rank`, is correct in every element. */
static inline int bench_is_right(enum bench_operation operation, float const* values, size_t count, int rank,
                                 int ranks) {
  size_t const part = count / (size_t)ranks;
  for (size_t i = 0; i < count; ++i) {
    float expected = 0.0f;
    switch (operation) {
      case bench_all_reduce: expected = bench_sum_of_ranks(i, ranks); break;
      case bench_all_gather: expected = bench_value(i % part, (int)(i / part)); break;
      case bench_broadcast: expected = bench_value(i, 0); break;
      case bench_reduce_scatter: expected = bench_sum_of_ranks(i + (size_t)rank * count, ranks); break;
      case bench_all_to_all: expected = bench_value(i % part + (size_t)rank * part, (int)(i / part)); break;
    }
    if (values[i] != expected) return 0;
  }
  return 1;
}
