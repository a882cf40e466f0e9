#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <crossrank/parallel.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/node/group.hpp"
#include "workspace/publication.hpp"

namespace crossrank::workspace {

/// Where the part of a rank is, as it said at the first meeting. Checked where it is used.
struct Descriptor {
  std::uint64_t offset = 0;  ///< in the arena of the rank
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  std::uint32_t slot = 0;
  bool is_inline = false;
  std::array<std::byte, node::Arrival::inline_bytes> inlined{};  ///< the part itself when it is this small

  [[nodiscard]] static Descriptor of(node::Post const& post);
  [[nodiscard]] static Descriptor of(node::Arrival const& arrival);
  [[nodiscard]] std::span<std::byte const> inlined_part() const noexcept;
};

/// How what is handed over travels between the two meetings of a range.
class Medium {
 public:
  virtual ~Medium() = default;
  /// Writer: makes its part available to `receiver` (a member of the group) and describes it in `post`, which refers to
  /// memory of this object.
  virtual void publish(Contribution const& contribution, int receiver, node::Post& post) = 0;
  /// Receiver: takes what `member` announced.
  virtual void receive(int member, Descriptor const& part, Collector& collector) = 0;
  /// Receiver: will not take it.
  virtual void decline(int member, Descriptor const& part) noexcept = 0;
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
