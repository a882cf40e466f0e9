#pragma once
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

/// What a rank hands over: a config or none, and tensors, absent ones among them.
struct Contribution {
  Json const* config = nullptr;
  std::span<NamedTensor const> tensors{};
};

/// Where what was handed over goes, piece by piece.
class Collector {
 public:
  virtual ~Collector() = default;
  virtual void expect(std::size_t tensors) = 0;
  virtual void config(Json value) = 0;
  virtual void tensor(std::string_view name, Tensor value) = 0;
};

/// A contribution as it lies in the arena of its rank: a table of what there is, then the bytes of the tensors that did
/// not live there already. What is small enough travels in the arrival line.
struct PublishedContribution {
  using Slots = boost::container::small_vector<node::Slot, 2>;

  std::optional<node::Slot> slab{};  ///< table and copied tensors; none when the table is `inlined`
  std::size_t bytes = 0;             ///< used of the slab
  /// The table, when it fits the line and there is nothing else.
  boost::container::small_vector<std::byte, node::Arrival::inline_bytes> inlined{};
  Slots arena_backed{};  ///< slots of tensors that lived in the arena
  std::optional<node::OfferClaim>
      claim{};  ///< without a slab, when there are such: who wins it disposes of their offers

  /// Descriptor for the arrival line.
  void describe(node::Post& post) const;
};

/// Whether a small contribution may travel in the arrival line instead of the arena.
enum class InlinePolicy : std::uint8_t { allowed, refused };

/// Copies what must be copied and offers every slot to `readers` (ranks of the node), so that they can take it once
/// they know of it. Takes back all of it when it throws.
[[nodiscard]] PublishedContribution publish(node::NodeComm& comm, Contribution const& contribution,
                                            std::span<int const> readers, InlinePolicy small = InlinePolicy::allowed);
/// Takes back the offers that were not taken, and lets the slab be used again once nobody reads it.
void revoke(node::NodeComm& comm, PublishedContribution const& published, std::span<int const> readers) noexcept;
/// The writer is done: the slab is used again once the offers on it are gone.
void release(node::NodeComm& comm, PublishedContribution const& published) noexcept;

/// Where a contribution of another rank lies, as it published it; checked before it is used.
struct RemoteContribution {
  int owner = 0;  ///< rank on the node
  bool is_inline = false;
  std::uint32_t slot = 0;        ///< of the slab; of the claim when inline
  std::uint64_t generation = 0;  ///< likewise
  std::span<std::byte const> payload{};
};

/// How a lease comes about.
enum class LeaseMode : std::uint8_t {
  offer,  ///< an offer becomes the lease: each can be taken once
  share,  ///< the offer stays: a state that stands in a workspace can be read again
};

/// Takes the leases and hands out views of the writer's memory. False when the offer has been revoked. `FormatError`
/// for a table that is not as `publish` writes it.
[[nodiscard]] bool receive(std::shared_ptr<node::NodeComm> const& comm, RemoteContribution const& at, LeaseMode how,
                           Collector& collector);
/// Gives back the offers of a published contribution that will not be received.
void decline(node::NodeComm& comm, RemoteContribution const& at) noexcept;

}  // namespace crossrank::workspace
