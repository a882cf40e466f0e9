#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/harness/harness.hpp"

namespace crossrank::bench {

using Consume = std::function<void(std::span<std::byte const>)>;

/// One rank of a contestant that moves messages. Rank 0 sends to all others, and rank 1 back to rank 0.
struct QueueContestant {
  std::string who{};
  int rank = 0;
  int ranks = 0;
  std::function<void(std::span<std::byte const>)> send{};  ///< returns when the caller may change the bytes
  std::function<void(Consume const&)> receive{};           ///< waits for the next message
  std::function<void()> barrier{};                         ///< waits for all ranks
};

/// Measures each size on this rank: "latency" is half of a round trip between two ranks; "stream" is the time per
/// message when many are sent without waiting for an answer. The receiver reads the first word of each message, or all
/// of it.
[[nodiscard]] std::vector<Row> measure_queue(QueueContestant const& contestant, std::vector<std::size_t> const& sizes,
                                             bool quick);

}  // namespace crossrank::bench
