#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <crossrank/parallel.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/node/group/group.hpp"
#include "workspace/shared_memory/published_contribution.hpp"

namespace crossrank::workspace {

/// Where the part of a rank is, as it said at the first round. Checked where it is used.
struct ContributionDescriptor {
  std::uint64_t offset = 0;  ///< in the arena of the rank
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  std::uint32_t slot = 0;
  bool is_inline = false;
  std::array<std::byte, node::Arrival::inline_bytes> inlined{};  ///< the part itself when it is this small

  [[nodiscard]] static ContributionDescriptor of(node::Post const& post);
  [[nodiscard]] static ContributionDescriptor of(node::Arrival const& arrival);
  [[nodiscard]] std::span<std::byte const> inlined_part() const noexcept;
};

/// How what is handed over travels between the two rounds of a range.
class ExchangeBackend {
 public:
  virtual ~ExchangeBackend() = default;
  /// Writer: makes its part available to `receiver` (a member of the group) and describes it in `post`, which refers to
  /// memory of this object.
  virtual void publish(Contribution const& contribution, int receiver, node::Post& post) = 0;
  /// Receiver: takes what `member` published.
  virtual void receive(int member, ContributionDescriptor const& part, Collector& collector) = 0;
  /// Receiver: will not take it.
  virtual void decline(int member, ContributionDescriptor const& part) noexcept = 0;
  /// Writer: all ranks have met, nobody will ask any more, unless the release is lazy.
  virtual void finish() = 0;
  /// Writer: the round failed; nothing that was not taken may be taken any more.
  virtual void discard() noexcept = 0;
};

/// Through the arenas of the node.
[[nodiscard]] std::unique_ptr<ExchangeBackend> make_arena_exchange(std::shared_ptr<node::Group> group);
/// Through files: those of a workspace that stays, or of one that is made for this call and removed at its end.
[[nodiscard]] std::unique_ptr<ExchangeBackend> make_file_exchange(std::shared_ptr<spi::Transport> transport,
                                                                  int global_rank, GatherOptions const& options,
                                                                  spi::TimeoutPolicy const& timeout_policy);

}  // namespace crossrank::workspace
