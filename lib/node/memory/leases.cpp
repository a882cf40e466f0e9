#include "lib/node/memory/leases.hpp"

#include "lib/core/as_size.hpp"
#include "lib/platform/prefetch.hpp"

namespace crossrank::node {
namespace {

bool same(LeaseWord const& w, std::uint64_t generation) {
  return w.generation == (generation & LeaseWord::generation_mask);
}

/// Generations wrap around, so the nearer half of them counts as later. A word that has been cleared has none.
bool is_later(LeaseWord const& w, std::uint64_t generation) {
  auto const ahead = (w.generation - generation) & LeaseWord::generation_mask;
  return w.generation != 0 && ahead != 0 && ahead <= LeaseWord::generation_mask / 2;
}

}  // namespace

std::size_t LeaseTable::row_offset(int owner, std::uint32_t slot) const noexcept {
  auto const row = as_size(owner) * geometry_.slot_capacity() + slot;
  return geometry_.leases_offset() + row * geometry_.lease_row_bytes();
}

std::atomic<std::uint64_t>& LeaseTable::word(int owner, std::uint32_t slot, int reader) const noexcept {
  auto* const row = reinterpret_cast<std::atomic<std::uint64_t>*>(control_ + row_offset(owner, slot));
  return row[reader];
}

template <class Change>
bool LeaseTable::update(int owner, std::uint32_t slot, int reader, Change change) const noexcept {
  auto& at = word(owner, slot, reader);
  auto seen = at.load(std::memory_order_acquire);
  for (;;) {
    auto next = LeaseWord::unpack(seen);
    if (!change(next)) return false;
    // acq_rel: a drop releases the reader's last loads to the owner, which acquires them in `load` before it writes
    // again.
    if (at.compare_exchange_weak(seen, next.pack(), std::memory_order_acq_rel, std::memory_order_acquire)) return true;
  }
}

bool LeaseTable::offer(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept {
  return update(owner, slot, reader, [&](LeaseWord& w) {
    if (w.offered == LeaseWord::count_limit || w.taken == LeaseWord::count_limit) return false;
    w.generation = generation;  // a word with another generation is free, or the slot would not have been used again
    ++w.offered;
    return true;
  });
}

bool LeaseTable::revoke(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept {
  return update(owner, slot, reader, [&](LeaseWord& w) {
    if (!same(w, generation) || w.offered == 0) return false;
    --w.offered;
    return true;
  });
}

bool LeaseTable::take(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept {
  return update(owner, slot, reader, [&](LeaseWord& w) {
    if (!same(w, generation) || w.offered == 0 || w.taken == LeaseWord::count_limit) return false;
    --w.offered;
    ++w.taken;
    return true;
  });
}

bool LeaseTable::share(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept {
  return update(owner, slot, reader, [&](LeaseWord& w) {
    if (!same(w, generation) || w.offered == 0 || w.taken == LeaseWord::count_limit) return false;
    ++w.taken;
    return true;
  });
}

bool LeaseTable::hold(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept {
  return update(owner, slot, reader, [&](LeaseWord& w) {
    if ((!same(w, generation) && !w.free()) || is_later(w, generation)) return false;
    if (w.taken == LeaseWord::count_limit) return false;
    w.generation = generation;
    ++w.taken;
    return true;
  });
}

bool LeaseTable::close(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept {
  return update(owner, slot, reader, [&](LeaseWord& w) {
    if (!w.free()) return false;
    w.generation = generation + 1;  // of the next use
    return true;
  });
}

bool LeaseTable::decline(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept {
  return revoke(owner, slot, generation, reader);
}

void LeaseTable::drop(int owner, std::uint32_t slot, std::uint64_t generation, int reader) noexcept {
  update(owner, slot, reader, [&](LeaseWord& w) {
    if (!same(w, generation) || w.taken == 0) return false;
    --w.taken;
    return true;
  });
}

void LeaseTable::prefetch(int owner, std::uint32_t slot, int reader) const noexcept {
  platform::prefetch_for_write(&word(owner, slot, reader));
}

LeaseWord LeaseTable::load(int owner, std::uint32_t slot, int reader) const noexcept {
  return LeaseWord::unpack(word(owner, slot, reader).load(std::memory_order_acquire));
}

void LeaseTable::clear(int owner, std::uint32_t slot, int reader) noexcept {
  word(owner, slot, reader).store(0, std::memory_order_release);
}

}  // namespace crossrank::node
