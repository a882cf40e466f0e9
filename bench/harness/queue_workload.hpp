#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/harness/harness.hpp"

namespace crossrank::bench {

using Consume = std::function<void(std::span<std::byte const>)>;

/// One rank of whoever moves messages: rank 0 sends to all others, and rank 1 back to rank 0.
struct QueueContestant {
  std::string who{};
  int rank = 0;
  int ranks = 0;
  std::function<void(std::span<std::byte const>)> send{};  ///< returns when the bytes may be changed
  std::function<void(Consume const&)> receive{};           ///< waits for the next message
  std::function<void()> barrier{};                         ///< waits for all ranks
};

/// Measures each size on this rank: "latency", half of a message there and one back, with two ranks; and "stream", the
/// time for one of many messages sent without waiting for an answer. The receiver looks at the first word of each
/// message, or at all.
[[nodiscard]] std::vector<Row> measure_queue(QueueContestant const& contestant, std::vector<std::size_t> const& sizes,
                                             bool quick);

}  // namespace crossrank::bench
