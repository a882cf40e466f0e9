/* The work of a consumer that reads, the same for every contestant: sums all bytes as 64-bit words. C and C++. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t bench_sum(void const* bytes, size_t count) {
  unsigned char const* at = (unsigned char const*)bytes;
  uint64_t lanes[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (; count >= 64; count -= 64, at += 64) {
    uint64_t words[8];
    memcpy(words, at, 64);
    for (int i = 0; i < 8; ++i) lanes[i] += words[i];
  }
  uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) sum += lanes[i];
  for (; count >= 8; count -= 8, at += 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    sum += word;
  }
  for (; count > 0; --count) sum += *at++;
  return sum;
}

/* Fills the contribution of `rank`. Every word differs from its neighbours and from the words of other ranks. */
static inline void bench_fill(void* bytes, size_t count, int rank) {
  uint64_t state = 0x9e3779b97f4a7c15u * (uint64_t)(rank + 1);
  unsigned char* at = (unsigned char*)bytes;
  while (count > 0) {
    size_t const step = count < 8 ? count : 8;
    state = state * 6364136223846793005u + 1442695040888963407u;
    memcpy(at, &state, step);
    at += step;
    count -= step;
  }
}

/* Writes the number of the call into the first word, so that bytes of an earlier call are recognized. */
static inline void bench_stamp(void* bytes, size_t count, uint64_t call) {
  if (count >= 8) memcpy(bytes, &call, 8);
}
static inline uint64_t bench_read_stamp(void const* bytes, size_t count) {
  uint64_t call = 0;
  if (count >= 8) memcpy(&call, bytes, 8);
  return call;
}

/* Returns the number of calls per sample. Short calls are batched, because a single one is below the clock's
 * resolution. */
static inline size_t bench_batch(size_t bytes) { return bytes <= 65536 ? 16 : 1; }
static inline size_t bench_samples(size_t bytes, int quick) {
  size_t const budget = (size_t)(quick ? 1 : 4) << 30;
  size_t samples = budget / (bytes < 4096 ? 4096 : bytes) / bench_batch(bytes);
  size_t const most = quick ? 200 : 1000;
  size_t const least = quick ? 8 : 20;
  if (samples > most) samples = most;
  return samples < least ? least : samples;
}
