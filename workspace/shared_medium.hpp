#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

#include "lib/node/domain.hpp"
#include "workspace/publication.hpp"

namespace crossrank::workspace {

/// A rank's part of its node's memory: what `SharedMemoryWorkspace` is a handle of. There is one for each domain, as a
/// rank has one published state.
///
/// A published state outlives the medium: its offers keep its memory until a new state replaces it, `clean` takes it
/// back, or the domain ends. After the rank has left or died its peers read it through their own mappings.
class SharedMedium {
 public:
  /// What the rank has published, if anything. Refers to the domain's memory and must not outlive it.
  struct Standing {
    std::optional<Publication> published{};
  };

  /// The domain's medium, made when there is none.
  [[nodiscard]] static std::shared_ptr<SharedMedium> of(std::shared_ptr<node::NodeDomain> const& domain);
  SharedMedium(std::shared_ptr<node::NodeDomain> domain, std::shared_ptr<Standing> standing);

  [[nodiscard]] std::shared_ptr<node::NodeDomain> const& domain() const noexcept { return domain_; }
  [[nodiscard]] Tensor empty(Shape const& shape, Dtype dtype) const;
  void write(Json const& config, StateDict const& weights);
  /// The state of a rank of the job; nothing when that rank never wrote, or has taken its state back.
  [[nodiscard]] std::optional<RankState> read(int global_rank) const;
  void clean() noexcept;

 private:
  /// A rank's record at one version.
  struct Found {
    std::uint64_t version = 0;
    std::optional<Located> state{};  ///< nothing: never written, or taken back
  };

  [[nodiscard]] int find_on_node(int global_rank) const;
  /// What a rank's record says now. Waits for a write under way.
  [[nodiscard]] Found locate(int owner) const;
  [[nodiscard]] Found settled(std::uint64_t version, Located at, std::uint64_t offset, std::uint64_t bytes) const;
  [[noreturn]] void fail_held(int owner) const;
  void announce(Publication const* publication) noexcept;

  std::shared_ptr<node::NodeDomain> domain_;
  std::shared_ptr<Standing> standing_;
  std::vector<int> everybody_;
  StateDict held_{};  ///< what is published: the caller's tensors of the arena, which it may publish again
};

}  // namespace crossrank::workspace
