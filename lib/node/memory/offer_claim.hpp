#pragma once
#include <cstdint>
#include <optional>

#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// Decides who disposes of the offers of one contribution to one reader: the reader, which takes them, or the owner,
/// which revokes them when the round has failed.
///
/// Offers on a slot are only counted: several contributions may offer one tensor to one reader. So each side may change
/// the count only for a contribution whose claim it has won. The claim of a contribution with a slab of its own is the
/// offer of that slab; this class is for contributions without one.
struct OfferClaim {
  std::uint32_t word = 0;      ///< in the owner's record
  std::uint64_t sequence = 0;  ///< distinguishes the uses of the word
};

/// Owner: opens a claim that either side can win. Empty when all words are in use.
[[nodiscard]] std::optional<OfferClaim> open_claim(RankRecord& own) noexcept;
/// Prefetches a claim of `owner` that will soon be opened or won.
void prefetch_claim(RankRecord const& owner, std::uint32_t word = 0) noexcept;
/// Either side: tries to win the claim. Returns whether it is the first.
[[nodiscard]] bool win_claim(RankRecord& owner, OfferClaim claim) noexcept;

}  // namespace crossrank::node
