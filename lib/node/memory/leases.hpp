#pragma once
#include <cstddef>
#include <cstdint>

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

  /// Returns offset and size of the words of a slot in the control segment. The owner reserves their pages first.
  [[nodiscard]] std::size_t row_offset(int owner, std::uint32_t slot) const noexcept;
  [[nodiscard]] std::size_t row_bytes() const noexcept { return geometry_.lease_row_bytes(); }

  /// Owner: adds an offer of this generation to `reader`. Returns false when the word cannot count further.
  [[nodiscard]] bool offer(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Owner: revokes an offer of this generation. Returns false when there is none because it was taken.
  bool revoke(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Reader: turns an offer of this generation into a lease. Returns false when there is none because it was revoked.
  [[nodiscard]] bool take(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Reader: adds a lease and keeps the offer of this generation. Returns false when there is no offer.
  [[nodiscard]] bool share(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Reader: adds a lease without an offer, while the owner is known to keep the slot for this reader. Returns false
  /// when the word cannot count further, or belongs to another use of the slot that lasts or is a later one.
  [[nodiscard]] bool hold(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Reader: returns an offer that it will not take. Returns false when there is none.
  bool decline(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Reader: ends one lease.
  void drop(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;

  /// Prefetches a word that will soon be changed.
  void prefetch(int owner, std::uint32_t slot, int reader) const noexcept;

  [[nodiscard]] LeaseWord load(int owner, std::uint32_t slot, int reader) const noexcept;
  /// Owner: ends this use of the slot for a reader, so that `hold` of this generation returns false from now on.
  /// Returns false when the reader has an offer or a lease.
  [[nodiscard]] bool close(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept;
  /// Owner: frees the words of a departed reader.
  void clear(int owner, std::uint32_t slot, int reader) noexcept;

 private:
  [[nodiscard]] std::atomic<std::uint64_t>& word(int owner, std::uint32_t slot, int reader) const noexcept;
  /// Changes a word with `change`, unless that returns false.
  template <class Change>
  bool update(int owner, std::uint32_t slot, int reader, Change change) const noexcept;

  std::byte* control_;
  ControlGeometry geometry_;
};

}  // namespace crossrank::node
