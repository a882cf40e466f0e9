#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>
#include <crossrank/workspace/options.hpp>

#include "lib/node/group/node_comm.hpp"
#include "workspace/shared_memory/published_contribution.hpp"
#include "workspace/shared_memory/remote_contribution.hpp"

namespace crossrank::workspace {

/// The state that one rank publishes in its node's memory; the implementation of `SharedMemoryWorkspace`. There is one
/// store per `NodeComm`.
///
/// A published state outlives the store. Its offers keep its memory until a new state replaces it, `clean` withdraws
/// it, or the `NodeComm` is destroyed. After the rank has left or died, its peers can still read the state through
/// their own mappings.
class ArenaStateStore {
 public:
  /// The rank's published state, if any. Refers to memory of the `NodeComm` and must not outlive it.
  struct PublishedState {
    std::optional<PublishedContribution> published{};
  };

  /// Returns the store of `comm`; creates it on the first call.
  [[nodiscard]] static std::shared_ptr<ArenaStateStore> of(std::shared_ptr<node::NodeComm> const& comm);
  ArenaStateStore(std::shared_ptr<node::NodeComm> comm, std::shared_ptr<PublishedState> published_state);

  [[nodiscard]] std::shared_ptr<node::NodeComm> const& comm() const noexcept { return comm_; }
  [[nodiscard]] Tensor empty(Shape const& shape, Dtype dtype) const;
  void write(Json const& config, StateDict const& weights, StateWriteOptions const& options = {});
  /// Returns the state of a rank of the job; empty when that rank never wrote one or has withdrawn it.
  [[nodiscard]] std::optional<RankState> read(int global_rank) const;
  void clean() noexcept;

 private:
  /// A rank's record at one version.
  struct RecordedState {
    std::uint64_t version = 0;
    std::optional<RemoteContribution> state{};  ///< empty: never written, or withdrawn
  };

  [[nodiscard]] int find_on_node(int global_rank) const;
  /// Returns the current content of a rank's record. Waits for a write in progress.
  [[nodiscard]] RecordedState locate(int owner) const;
  [[nodiscard]] RecordedState validated(std::uint64_t version, RemoteContribution at, std::uint64_t offset,
                                        std::uint64_t bytes) const;
  [[noreturn]] void fail_held(int owner) const;
  void publish_record(PublishedContribution const* published) noexcept;

  std::shared_ptr<node::NodeComm> comm_;
  std::shared_ptr<PublishedState> published_state_;
  std::vector<int> everybody_;
  StateDict
      held_{};  ///< the published tensors; keeps arena-backed ones alive so that the caller may publish them again
};

}  // namespace crossrank::workspace
