#include "lib/node/memory/offer_claim.hpp"

#include <iterator>

#include "lib/platform/prefetch.hpp"

namespace crossrank::node {
namespace {

// A word holds its sequence, and in the last bit whether the claim is open.
constexpr std::uint64_t open_bit = 1;

}  // namespace

std::optional<OfferClaim> open_claim(RankRecord& own) noexcept {
  for (std::uint32_t index = 0; index < std::size(own.claims); ++index) {
    auto& word = own.claims[index];
    auto seen = word.load(std::memory_order_relaxed);
    if ((seen & open_bit) != 0) continue;
    auto const sequence = (seen >> 1) + 1;
    if (word.compare_exchange_strong(seen, sequence << 1 | open_bit, std::memory_order_acq_rel))
      return OfferClaim{index, sequence};
  }
  return std::nullopt;
}

void prefetch_claim(RankRecord const& owner, std::uint32_t word) noexcept {
  if (word < std::size(owner.claims)) platform::prefetch_for_write(&owner.claims[word]);
}

bool win_claim(RankRecord& owner, OfferClaim claim) noexcept {
  if (claim.word >= std::size(owner.claims)) return false;  // a peer wrote the number
  auto open = claim.sequence << 1 | open_bit;
  return owner.claims[claim.word].compare_exchange_strong(open, claim.sequence << 1, std::memory_order_acq_rel);
}

}  // namespace crossrank::node
