#pragma once
#include <memory>

#include <crossrank/parallel.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/node/group.hpp"
#include "workspace/publication.hpp"

namespace crossrank::workspace {

/// How what is handed over travels between the two meetings of a range.
class Medium {
 public:
  virtual ~Medium() = default;
  /// Writer: makes its part available to `receiver` (a member of the group) and describes it in `post`, which refers to
  /// memory of this object.
  virtual void publish(Contribution const& contribution, int receiver, node::Post& post) = 0;
  /// Receiver: takes what `member` announced.
  virtual void receive(int member, node::Arrival const& arrival, Collector& collector) = 0;
  /// Receiver: will not take it.
  virtual void decline(int member, node::Arrival const& arrival) noexcept = 0;
  /// Writer: all ranks have met, nobody will ask any more, unless the release is lazy.
  virtual void finish() = 0;
  /// Writer: the meeting failed; nothing that was not taken may be taken any more.
  virtual void give_up() noexcept = 0;
};

/// Through the arenas of the node.
[[nodiscard]] std::unique_ptr<Medium> shared_medium(std::shared_ptr<node::Group> group);
/// Through files: those of a workspace that stays, or of one that is made for this call and removed at its end.
[[nodiscard]] std::unique_ptr<Medium> nfs_medium(std::shared_ptr<spi::Transport> transport, int global_rank,
                                                 GatherOptions const& options, spi::Patience const& patience);

}  // namespace crossrank::workspace
