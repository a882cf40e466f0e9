#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <crossrank/export.hpp>
#include <crossrank/spi/operation.hpp>
#include <crossrank/spi/transport.hpp>

namespace crossrank::spi {

/// Options of `add_node_memory`.
struct NodeMemoryOptions {
  TimeoutPolicy timeout_policy{};                      ///< how long calls may wait
  std::chrono::milliseconds connect_timeout{120'000};  ///< longest wait for the ranks of a node to join
  std::optional<std::uint64_t> arena_cap{};            ///< limit in bytes for all arenas of a node together
  bool threads = false;                                ///< whether the ranks of a node are threads of one process
  std::string job{};  ///< id of the job, for `crossrank inspect` and flight records; that of the first rank counts
};

/// Makes a group of the same ranks that uses shared memory within each node.
///
/// Collective over `across`, which the new group uses for agreement, messages and the data between nodes. A large
/// payload is sent to each node once. Blocks until all ranks of the node have joined. Errors as for `connect` with the
/// backend "shm", and those of `across`.
[[nodiscard]] CROSSRANK_EXPORT std::shared_ptr<Transport> add_node_memory(std::shared_ptr<Transport> across,
                                                                          NodeMemoryOptions const& options);

}  // namespace crossrank::spi
