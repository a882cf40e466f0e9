#include "collectives/shm/staging_ring.hpp"

#include <algorithm>
#include <bit>

#include <crossrank/error.hpp>

#include "lib/core/round_up.hpp"

namespace crossrank::shm {
namespace {

constexpr std::size_t line = 64;
constexpr int wraps_before_growth = 4;

}  // namespace

bool StagingRing::is_free(std::size_t begin, std::size_t bytes) const noexcept {
  return std::none_of(used_.begin(), used_.end(),
                      [&](Use const& use) { return begin < use.end && use.begin < begin + bytes; });
}

/// Continues in a new ring of this capacity. The old one is released once nobody reads it.
void StagingRing::replace(std::size_t capacity, node::Arena::WhenFull when_full) {
  auto const slot = arena_.allocate(capacity, when_full);
  if (slot_ && used_.empty()) {
    arena_.release(*slot_);
  } else if (slot_) {
    old_.push_back({*slot_, used_.back().round});
  }
  used_.clear();
  slot_ = slot;
  capacity_ = capacity;
  next_ = 0;
  wraps_ = 0;
}

void StagingRing::grow_by_use() noexcept {
  if (!may_grow_ || capacity_ >= max_by_use || ++wraps_ < wraps_before_growth) return;
  try {
    replace(2 * capacity_, node::Arena::WhenFull::ask);
  } catch (Error const&) {
    may_grow_ = false;  // memory is short: a shorter ring works too, but slower
  }
}

void StagingRing::make_space_for(std::size_t bytes) {
  auto const needed = std::max(min_capacity, std::bit_ceil(bytes * regions));
  if (may_grow_ && bytes >= long_region && needed < max_by_use) {
    try {
      return replace(max_by_use, node::Arena::WhenFull::ask);
    } catch (Error const&) {
      may_grow_ = false;
    }
  }
  replace(needed);
}

void StagingRing::reserve(std::size_t bytes) {
  auto const wanted = round_up(std::max<std::size_t>(bytes, 1), line);
  if (wanted > capacity_ / regions) make_space_for(wanted);
}

StagingRing::Region StagingRing::take(std::size_t bytes) {
  auto const wanted = round_up(std::max<std::size_t>(bytes, 1), line);
  reserve(wanted);
  if (next_ + wanted > capacity_) {
    next_ = 0;
    grow_by_use();
  }
  if (!is_free(next_, wanted)) replace(2 * capacity_);
  Region const region{.slot = *slot_, .offset = slot_->offset + next_, .bytes = wanted};
  used_.push_back({.begin = next_, .end = next_ + wanted});
  next_ += wanted;
  return region;
}

void StagingRing::read_in(std::uint64_t round) noexcept {
  for (auto& use : used_) {
    if (use.round == unread) use.round = round;
  }
  for (auto& old : old_) {
    if (old.round == unread) old.round = round;
  }
}

void StagingRing::free_before(std::uint64_t round) noexcept {
  auto const over = [round](auto const& one) { return one.round < round; };
  if (!used_.empty() && over(used_.front())) std::erase_if(used_, over);
  if (old_.empty()) return;
  for (auto const& old : old_) {
    if (over(old)) arena_.release(old.slot);
  }
  std::erase_if(old_, over);
}

std::vector<node::Slot> StagingRing::slots() const {
  std::vector<node::Slot> all;
  if (slot_) all.push_back(*slot_);
  for (auto const& old : old_) all.push_back(old.slot);
  return all;
}

}  // namespace crossrank::shm
