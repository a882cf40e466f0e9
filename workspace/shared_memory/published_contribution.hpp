#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <boost/container/small_vector.hpp>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>

#include "lib/node/memory/offer_claim.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/node/group/group.hpp"

namespace crossrank::workspace {

struct NamedTensor {
  std::string_view name{};
  Tensor const* tensor = nullptr;
};

/// The input of one rank to a gather: an optional config, and tensors, some of which may be undefined.
struct Contribution {
  Json const* config = nullptr;
  std::span<NamedTensor const> tensors{};
};

/// Receives the pieces of a contribution.
class Collector {
 public:
  virtual ~Collector() = default;
  virtual void expect(std::size_t tensors) = 0;
  virtual void config(Json value) = 0;
  virtual void tensor(std::string_view name, Tensor value) = 0;
};

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

/// The location of another rank's contribution, as published by that rank. Validated before use.
struct RemoteContribution {
  int owner = 0;  ///< rank on the node
  bool is_inline = false;
  std::uint32_t slot = 0;        ///< of the slab; of the claim when inline
  std::uint64_t generation = 0;  ///< of the slab; of the claim when inline
  std::span<std::byte const> payload{};
};

/// How a lease is obtained.
enum class LeaseMode : std::uint8_t {
  offer,  ///< the offer becomes the lease, so it can be taken once
  share,  ///< the offer stays, so that a state in a workspace can be read again
};

/// Takes the leases and passes views of the writer's memory to `collector`. Returns false when the offers were revoked.
/// Throws `FormatError` for a table that `publish` cannot have written.
[[nodiscard]] bool receive(std::shared_ptr<node::NodeComm> const& comm, RemoteContribution const& at, LeaseMode how,
                           Collector& collector);
/// Declines the offers of a contribution that will not be received.
void decline(node::NodeComm& comm, RemoteContribution const& at) noexcept;

}  // namespace crossrank::workspace
