#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// The lease words of a node: for each slot of each arena, one word for each rank that may read it.
///
/// The owner of a slot *offers* it to a reader before it publishes the descriptor; the reader *takes* the offer by
/// compare-and-swap when it hands the item out, and drops it with the item's last copy. A failed round revokes offers,
/// never leases. A slot is used again only when every word is free; the words of dead readers are void.
class LeaseTable {
 public:
  LeaseTable(std::byte* control, int ranks) noexcept : control_(control), geometry_(ranks) {}

  /// Where the words of a slot stand in the control segment, and how many bytes they are: the owner reserves them
  /// first.
  [[nodiscard]] std::size_t row_offset(int owner, std::uint32_t slot) const noexcept;
  [[nodiscard]] std::size_t row_bytes() const noexcept { return geometry_.lease_row_bytes(); }

  /// Owner: one more offer of this generation to `reader`. False when the word cannot count further.
  [[nodiscard]] bool offer(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Owner: takes one offer of this generation back. False when there is none: it was taken.
  bool revoke(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Reader: turns an offer of this generation into a lease. False when there is none: it was revoked.
  [[nodiscard]] bool take(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Reader: one more lease under an offer of this generation that stays. False when there is none.
  [[nodiscard]] bool share(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Reader: a lease without an offer, while the owner is known to keep the slot for this reader. False when the word
  /// cannot count further, or still belongs to another use of the slot.
  [[nodiscard]] bool hold(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Reader: gives an offer back that it will not take. False when there is none.
  bool decline(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Reader: ends one lease.
  void drop(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;

  /// A hint that a word will be changed soon: the line comes while the caller does something else.
  void prefetch(int owner, std::uint32_t slot, int reader) const noexcept;

  [[nodiscard]] LeaseWord look(int owner, std::uint32_t slot, int reader) const noexcept;
  /// Owner: makes the words of a departed reader free.
  void clear(int owner, std::uint32_t slot, int reader) noexcept;

 private:
  [[nodiscard]] std::atomic<std::uint64_t>& word(int owner, std::uint32_t slot, int reader) const noexcept;
  /// Changes a word as `change` says, unless that returns false.
  template <class Change>
  bool update(int owner, std::uint32_t slot, int reader, Change change) const noexcept;

  std::byte* control_;
  ControlGeometry geometry_;
};

}  // namespace crossrank::node
