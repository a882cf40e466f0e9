#pragma once
#include <cstdint>
#include <optional>

#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// Settles who disposes of the offers of one publication to one reader: the reader, who takes them, or the owner, who
/// takes them back when the round has failed.
///
/// Offers on a slot are counted, not named: several publications may offer one tensor to one reader. Each side may
/// therefore change the count only for a publication that it has won, or it would spend another one's offers. A
/// publication with a slab of its own is won with the offer of that slab; this is for those without one.
struct OfferClaim {
  std::uint32_t word = 0;      ///< in the owner's record
  std::uint64_t sequence = 0;  ///< tells the uses of the word apart
};

/// Owner: a claim that both sides may win; nothing when all words are in use.
[[nodiscard]] std::optional<OfferClaim> open_claim(RankRecord& own) noexcept;
/// A hint that a claim of `owner` will be opened or won soon: its line comes while the caller does something else.
void prefetch_claim(RankRecord const& owner, std::uint32_t word = 0) noexcept;
/// Either side: whether it is the first.
[[nodiscard]] bool win_claim(RankRecord& owner, OfferClaim claim) noexcept;

}  // namespace crossrank::node
