#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

#include "lib/node/group/node_comm.hpp"
#include "workspace/shared_memory/published_contribution.hpp"

namespace crossrank::workspace {

/// A rank's part of its node's memory: what `SharedMemoryWorkspace` is a handle of. There is one for each comm, as a
/// rank has one published state.
///
/// A published state outlives the store: its offers keep its memory until a new state replaces it, `clean` takes it
/// back, or the comm ends. After the rank has left or died its peers read it through their own mappings.
class ArenaStateStore {
 public:
  /// What the rank has published, if anything. Refers to the comm's memory and must not outlive it.
  struct PublishedState {
    std::optional<PublishedContribution> published{};
  };

  /// The comm's store, made when there is none.
  [[nodiscard]] static std::shared_ptr<ArenaStateStore> of(std::shared_ptr<node::NodeComm> const& comm);
  ArenaStateStore(std::shared_ptr<node::NodeComm> comm, std::shared_ptr<PublishedState> published_state);

  [[nodiscard]] std::shared_ptr<node::NodeComm> const& comm() const noexcept { return comm_; }
  [[nodiscard]] Tensor empty(Shape const& shape, Dtype dtype) const;
  void write(Json const& config, StateDict const& weights);
  /// The state of a rank of the job; nothing when that rank never wrote, or has taken its state back.
  [[nodiscard]] std::optional<RankState> read(int global_rank) const;
  void clean() noexcept;

 private:
  /// A rank's record at one version.
  struct RecordedState {
    std::uint64_t version = 0;
    std::optional<RemoteContribution> state{};  ///< nothing: never written, or taken back
  };

  [[nodiscard]] int find_on_node(int global_rank) const;
  /// What a rank's record says now. Waits for a write under way.
  [[nodiscard]] RecordedState locate(int owner) const;
  [[nodiscard]] RecordedState validated(std::uint64_t version, RemoteContribution at, std::uint64_t offset,
                                        std::uint64_t bytes) const;
  [[noreturn]] void fail_held(int owner) const;
  void publish_record(PublishedContribution const* published) noexcept;

  std::shared_ptr<node::NodeComm> comm_;
  std::shared_ptr<PublishedState> published_state_;
  std::vector<int> everybody_;
  StateDict held_{};  ///< what is published: the caller's tensors of the arena, which it may publish again
};

}  // namespace crossrank::workspace
