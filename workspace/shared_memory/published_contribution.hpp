#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <boost/container/small_vector.hpp>

#include "lib/node/group/group.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/node/memory/offer_claim.hpp"
#include "workspace/shared_memory/contribution.hpp"

namespace crossrank::workspace {

/// A contribution in the arena of its rank: a table, followed by the tensors that were not in the arena already. A
/// small table travels in the arrival line instead.
struct PublishedContribution {
  using Slots = boost::container::small_vector<node::Slot, 2>;

  std::optional<node::Slot> slab{};  ///< table and copied tensors; empty when the table is `inlined`
  std::size_t bytes = 0;             ///< used bytes of the slab
  /// The table, when it fits into the arrival line and no tensor had to be copied.
  boost::container::small_vector<std::byte, node::Arrival::inline_bytes> inlined{};
  Slots arena_backed{};  ///< slots of tensors that were in the arena already
  std::optional<node::OfferClaim>
      claim{};  ///< for arena-backed slots without a slab: the rank that wins the claim disposes of their offers

  /// Describes the contribution in `post`.
  void describe(node::Post& post) const;
};

/// Whether a small contribution may travel in the arrival line instead of the arena.
enum class InlinePolicy : std::uint8_t { allowed, refused };

/// How a contribution is published.
struct PublishOptions {
  InlinePolicy small = InlinePolicy::allowed;
  std::chrono::milliseconds timeout{};  ///< for copies from GPUs; 0: as for `Event::synchronize`
  bool in_place = false;                ///< whether readers get the memory of GPUs itself where that can be shared
};

/// Copies the tensors that are not in the arena, and offers every slot to `readers` (ranks of the node). Undoes
/// everything when it throws.
///
/// Tensors on a GPU are copied straight into the slab, which is page-locked at its first such use. The host waits once
/// for all of them. `UsageError` while the current stream of a GPU is being captured. Tensors that are given in place
/// cannot be written until the last reader drops them.
[[nodiscard]] PublishedContribution publish(node::NodeComm& comm, Contribution const& contribution,
                                            std::span<int const> readers, PublishOptions const& options = {});
/// Revokes the offers that were not taken. The slab can be reused once nobody reads it.
void revoke(node::NodeComm& comm, PublishedContribution const& published, std::span<int const> readers) noexcept;
/// Ends the writer's use of the slab, which can be reused once its offers are gone.
void release(node::NodeComm& comm, PublishedContribution const& published) noexcept;

}  // namespace crossrank::workspace
