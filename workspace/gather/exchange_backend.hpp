#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>

#include <crossrank/parallel.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/node/group/group.hpp"
#include "workspace/shared_memory/contribution.hpp"

namespace crossrank::workspace {

/// The location of a rank's contribution, as that rank announced it in the first round. Validated before use.
struct ContributionDescriptor {
  std::uint64_t offset = 0;  ///< in the arena of the rank
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  std::uint32_t slot = 0;
  bool is_inline = false;
  std::array<std::byte, node::Arrival::inline_bytes> inlined{};  ///< the contribution itself, when it is small enough

  [[nodiscard]] static ContributionDescriptor of(node::Post const& post);
  [[nodiscard]] static ContributionDescriptor of(node::Arrival const& arrival);
  [[nodiscard]] std::span<std::byte const> inlined_part() const noexcept;
};

/// Moves the contributions between the two rounds of a range.
class ExchangeBackend {
 public:
  virtual ~ExchangeBackend() = default;
  /// Writer: makes its contribution available to `receiver` (a member of the group) and describes it in `post`. The
  /// description refers to memory of this object.
  virtual void publish(Contribution const& contribution, int receiver, node::Post& post) = 0;
  /// Receiver: receives the contribution of `member`.
  virtual void receive(int member, ContributionDescriptor const& part, Collector& collector) = 0;
  /// Receiver: gives up the contribution of `member`.
  virtual void decline(int member, ContributionDescriptor const& part) noexcept = 0;
  /// Writer: ends the exchange after the second round. With a strict release, no rank reads the contribution any more.
  virtual void finish() = 0;
  /// Writer: withdraws everything that was not taken, because the round failed.
  virtual void discard() noexcept = 0;
};

/// Throws `UsageError` for a config that no other rank could send. The receiver checks its own, which is not sent, so
/// that a program does not depend on which rank receives.
void require_sendable_config(Contribution const& own);

/// Throws the error of this rank's part of a range whose group has failed with `of_group`: its own error, as one after
/// which the group is not usable, or that of the group if the own exception has no such field.
[[noreturn]] void throw_beside(std::exception_ptr const& own, Error const& of_group);

/// Creates an exchange through the arenas of the node. `timeout` limits copies from GPUs. `in_place` gives the memory
/// of GPUs itself where it can be shared.
[[nodiscard]] std::unique_ptr<ExchangeBackend> make_arena_exchange(std::shared_ptr<node::Group> group,
                                                                   std::chrono::milliseconds timeout, bool in_place);
/// Creates an exchange through files, either of the caller's workspace or of one that exists only for this range.
[[nodiscard]] std::unique_ptr<ExchangeBackend> make_file_exchange(std::shared_ptr<spi::Transport> transport,
                                                                  int global_rank, GatherOptions const& options,
                                                                  spi::TimeoutPolicy const& timeout_policy);

}  // namespace crossrank::workspace
