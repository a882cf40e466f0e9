#pragma once
#include <cstddef>
#include <memory>
#include <optional>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

#include "lib/node/domain.hpp"
#include "workspace/publication.hpp"

namespace crossrank::workspace {

/// A rank's part of its node's memory: what `SharedMemoryWorkspace` is a handle of. There is one for each domain, as a
/// rank has one published state.
class SharedMedium {
 public:
  /// The domain's medium, made when there is none.
  [[nodiscard]] static std::shared_ptr<SharedMedium> of(std::shared_ptr<node::NodeDomain> const& domain);
  explicit SharedMedium(std::shared_ptr<node::NodeDomain> domain);
  ~SharedMedium();
  SharedMedium(SharedMedium const&) = delete;
  SharedMedium& operator=(SharedMedium const&) = delete;

  [[nodiscard]] std::shared_ptr<node::NodeDomain> const& domain() const noexcept { return domain_; }
  [[nodiscard]] Tensor empty(Shape const& shape, Dtype dtype) const;
  void write(Json const& config, StateDict const& weights);
  /// The state of a rank of the job.
  [[nodiscard]] std::optional<RankState> read(int global_rank) const;
  void clean() noexcept;

 private:
  [[nodiscard]] std::optional<int> find_on_node(int global_rank) const noexcept;
  /// What a rank's record says now; nothing when it never wrote. Waits for a write under way.
  [[nodiscard]] std::optional<Located> locate(int owner) const;
  void announce(Publication const* publication) noexcept;

  std::shared_ptr<node::NodeDomain> domain_;
  std::vector<int> everybody_;
  std::optional<Publication> published_{};
  StateDict held_{};  ///< what is published: tensors of the arena must not be used again while it stands
};

}  // namespace crossrank::workspace
