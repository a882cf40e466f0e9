#include "lib/node/memory/arena.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <iterator>
#include <mutex>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/log.hpp"
#include "lib/core/round_up.hpp"
#include "lib/node/memory/counters.hpp"
#include "lib/node/memory/lent_objects.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

/// How long the other ranks have to return the next pages: their watchdog threads look ten times a second.
constexpr auto next_trim_takes_at_most = std::chrono::milliseconds(250);
constexpr auto all_trims_take_at_most = std::chrono::seconds(5);
constexpr auto trims_nap = std::chrono::milliseconds(1);
/// How long a watchdog thread may return pages between two heartbeats, and how many bytes it returns at a time.
constexpr auto trims_between_heartbeats = std::chrono::milliseconds(50);
constexpr std::size_t bytes_per_trim = std::size_t{64} << 20;

/// How many bytes get pages before that counts as progress of the rank.
constexpr std::size_t bytes_per_step = std::size_t{256} << 20;

constexpr std::size_t least_slot = page_bytes;
constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, Linux 5.14; where it is refused the pages come one by one

/// Rounds up so that similar sizes share slots. Wastes at most an eighth.
std::size_t capacity_for(std::size_t bytes) {
  auto const step = std::max(least_slot, std::bit_floor(std::max(bytes, least_slot)) / 8);
  return round_up(std::max(bytes, least_slot), step);
}

/// Returns null when the driver refuses.
std::shared_ptr<void> lock_pages(std::span<std::byte const> pages, Device::Kind kind) {
  try {
    return spi::device_provider(kind).register_host(pages, spi::DeviceProvider::HostAccess::read_write);
  } catch (Error const& e) {
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
      log_event(LogLevel::warning, "shared memory cannot be page-locked; tensors on GPUs are copied twice",
                {{"error", e.what()}});
    }
    return nullptr;
  }
}

}  // namespace

Arena::Arena(ArenaMemory memory)
    : memory_(std::move(memory)),
      leases_(memory_.control->data(), memory_.ranks),
      header_(*reinterpret_cast<ControlHeader*>(memory_.control->data())),
      cap_bytes_(header_.cap_bytes),
      records_(
          reinterpret_cast<RankRecord*>(memory_.control->data() + ControlGeometry(memory_.ranks).records_offset())) {
  drop_lent();
}

Arena::~Arena() {
  if (abandoned_) return;
  try {
    collect(Driver::not_called);
    trim_locked();
    unreserve(reserved_ - std::min(reserved_, lend_rest()));
  } catch (std::exception const& e) {
    log_event(LogLevel::warning, "shared memory could not be given back", {{"error", e.what()}});
  }
  drop_lent();
}

std::size_t Arena::lend_rest() {
  std::vector<bool> is_deferred(entries_.size());
  for (auto const& deferred : deferred_) is_deferred[deferred.slot.id] = true;
  std::size_t lent = 0;
  for (auto& entry : entries_) {
    if (entry.state != State::held && entry.state != State::released) continue;
    bool const ended = end_use(entry);
    if (ended && !is_deferred[entry.slot.id]) continue;
    lent += entry.slot.bytes;
    if (ended || entry.kept.empty()) continue;
    keep_lent({.control = memory_.control,
               .ranks = memory_.ranks,
               .owner = memory_.rank,
               .slot = entry.slot.id,
               .generation = entry.slot.generation,
               .objects = std::move(entry.kept)});
  }
  return lent;
}

Slot Arena::allocate(std::size_t bytes, WhenFull when_full) {
  std::vector<std::shared_ptr<void const>> dropped;  // of earlier uses of the slot; destroyed after the lock
  std::lock_guard const lock(mutex_);
  if (bytes > memory_.mapping->size()) fail_full(bytes);
  auto const capacity = capacity_for(bytes);
  auto slot = take_free(capacity);
  if (!slot) {
    collect_deferred();
    slot = take_free(capacity);
  }
  if (!slot && capacity > growth_before_collect_) {
    collect();
    slot = take_free(capacity);
    // Looking at each released slot for each new one would take quadratic time when readers keep what they get.
    growth_before_collect_ = 0;
    if (!slot)
      for (auto const id : released_) growth_before_collect_ += entries_[id].slot.bytes / 8;
  }
  if (!slot) {
    slot = grow(capacity, when_full);
    growth_before_collect_ -= std::min(growth_before_collect_, capacity);
  }
  auto& entry = entries_[slot->id];
  entry.state = State::held;
  ++entry.slot.generation;
  dropped.swap(entry.kept);
  return entry.slot;
}

std::optional<Slot> Arena::take_free(std::size_t capacity) {
  auto const found = free_.lower_bound(capacity);
  if (found == free_.end() || found->first > capacity * 2) return std::nullopt;
  auto const id = found->second;
  free_.erase(found);
  return entries_[id].slot;
}

bool Arena::end_use(Entry const& entry) const {
  auto* const control = memory_.control->data();
  auto const& slot = entry.slot;
  // A reader may be about to take a lease on an object, because the message that names it is on its way.
  if (!entry.kept.empty()) return close_unless_leased(control, memory_.ranks, memory_.rank, slot.id, slot.generation);
  return !is_leased(control, memory_.ranks, memory_.rank, slot.id, ReadBy::cpu);
}

void Arena::collect(Driver driver) {
  collect_deferred(driver);
  for (std::size_t i = 0; i < released_.size();) {
    auto& entry = entries_[released_[i]];
    if (!end_use(entry)) {
      ++i;
      continue;
    }
    free_.emplace(entry.slot.bytes, entry.slot.id);
    entry.state = State::free;
    released_[i] = released_.back();
    released_.pop_back();
  }
}

void Arena::collect_deferred(Driver driver) {
  std::erase_if(deferred_, [this, driver](Deferred const& deferred) {
    if ((driver == Driver::not_called && deferred.awaits == Awaits::device) || !deferred.ready()) return false;
    release_locked(deferred.slot);
    return true;
  });
}

bool Arena::reserve(std::size_t bytes) noexcept {
  auto used = header_.reserved_bytes.load(std::memory_order_relaxed);
  do {
    if (bytes > cap_bytes_ || used > cap_bytes_ - bytes) return false;
  } while (!header_.reserved_bytes.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  reserved_ += bytes;
  return true;
}

void Arena::unreserve(std::size_t bytes) noexcept {
  header_.reserved_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  reserved_ -= bytes;
}

std::optional<std::size_t> Arena::place(std::size_t capacity) {
  for (auto it = cold_.begin(); it != cold_.end(); ++it) {
    auto const [offset, bytes] = *it;
    if (bytes < capacity) continue;
    cold_.erase(it);
    if (bytes > capacity) cold_.emplace(offset + capacity, bytes - capacity);
    return offset;
  }
  if (capacity > memory_.mapping->size() - end_) return std::nullopt;
  return std::exchange(end_, end_ + capacity);
}

std::uint32_t Arena::new_id() {
  if (!unused_ids_.empty()) {
    auto const id = unused_ids_.back();
    unused_ids_.pop_back();
    return id;
  }
  auto const id = static_cast<std::uint32_t>(entries_.size());
  auto const max = ControlGeometry(memory_.ranks).slot_capacity();
  if (id >= max && collect_and_trim() > 0) return new_id();
  if (id >= max) {
    throw UnavailableError({.operation = "arena",
                            .message = "too many tensors live in the arena of rank " + std::to_string(memory_.rank),
                            .expected = "at most " + std::to_string(max),
                            .hint = "drop tensors that are no longer needed, or put small ones into one"});
  }
  auto const row = leases_.row_offset(memory_.rank, id);
  if (int const error = reserve_pages(*memory_.control_fd, row, leases_.row_bytes()); error != 0)
    fail_refused(leases_.row_bytes(), error);
  entries_.push_back({.slot = {.id = id}});
  return id;
}

Slot Arena::grow(std::size_t capacity, WhenFull when_full) {
  auto const id = new_id();
  try {
    take_pages(id, capacity, when_full);
  } catch (...) {
    unused_ids_.push_back(id);
    throw;
  }
  count(counters().arena_growths);
  by_offset_[entries_[id].slot.offset] = id;
  return entries_[id].slot;
}

void Arena::take_pages(std::uint32_t id, std::size_t capacity, WhenFull when_full) {
  if (!reserve(capacity)) {
    collect_and_trim();
    if (!reserve(capacity) && !reserve_after_trims(capacity, when_full)) fail_full(capacity);
  }
  auto offset = place(capacity);
  if (!offset) {
    // Free slots may lie where there is space for the new one.
    collect_and_trim();
    offset = place(capacity);
  }
  if (!offset) {
    unreserve(capacity);
    fail_without_range(capacity);
  }
  CROSSRANK_CRASH_POINT("node.arena.growing");
  if (int const error = map_pages(*offset, capacity); error != 0) {
    release_pages(*memory_.fd, *offset, capacity);
    add_cold(*offset, capacity);
    unreserve(capacity);
    fail_refused(capacity, error);
  }
  entries_[id].slot.offset = *offset;
  entries_[id].slot.bytes = capacity;
}

int Arena::map_pages(std::size_t offset, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes; done += bytes_per_step) {
    auto const step = std::min(bytes_per_step, bytes - done);
    if (int const error = reserve_pages(*memory_.fd, offset + done, step); error != 0) return error;
    platform::system().madvise(memory_.mapping->data() + offset + done, step, populate_write);
    records_[memory_.rank].progress.fetch_add(1, std::memory_order_relaxed);
  }
  return 0;
}

bool Arena::reserve_after_trims(std::size_t bytes, WhenFull when_full) {
  if (bytes > cap_bytes_) return false;
  bool others_hear = false;
  for (int rank = 0; rank < memory_.ranks; ++rank) {
    auto const& record = records_[rank];
    others_hear = others_hear ||
                  (rank != memory_.rank && record.heartbeat.load(std::memory_order_relaxed) != 0 &&
                   record.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(AttachState::attached));
  }
  auto left = header_.reserved_bytes.load(std::memory_order_relaxed);
  if (!others_hear || left <= reserved_) return false;
  auto& system = platform::system();
  auto const start = system.now();
  if (when_full == WhenFull::ask && start < ask_again_at_) return false;
  ask_again_at_ = start + next_trim_takes_at_most;
  header_.trims_asked.fetch_add(1, std::memory_order_relaxed);
  if (when_full == WhenFull::ask) return false;
  for (auto until = start + next_trim_takes_at_most; system.now() < until; system.sleep(trims_nap)) {
    if (reserve(bytes)) return true;
    if (auto const now_left = header_.reserved_bytes.load(std::memory_order_relaxed); now_left < left) {
      left = now_left;
      until = std::min(system.now() + next_trim_takes_at_most, start + all_trims_take_at_most);
    }
  }
  return reserve(bytes);
}

void Arena::trim_if_asked() noexcept {
  auto const asked = header_.trims_asked.load(std::memory_order_relaxed);
  if (asked == trims_seen_) return;
  std::unique_lock const lock(mutex_, std::try_to_lock);
  if (!lock) return;
  try {
    collect(Driver::not_called);
    auto& system = platform::system();
    auto const until = system.now() + trims_between_heartbeats;
    for (auto slot = free_.begin(); slot != free_.end();) {
      if (system.now() >= until) return;  // the next heartbeat continues
      auto const [capacity, id] = *slot;
      if (entries_[id].page_lock) {
        ++slot;
        continue;
      }
      slot = free_.erase(slot);
      give_back_end(id, std::min(capacity, bytes_per_trim));
      if (entries_[id].state == State::free) slot = free_.emplace(entries_[id].slot.bytes, id);
    }
    trims_seen_ = asked;
  } catch (std::exception const& e) {
    log_event(LogLevel::warning, "free shared memory could not be given back", {{"error", e.what()}});
  }
}

void Arena::release(Slot const& slot) noexcept {
  std::lock_guard const lock(mutex_);
  release_locked(slot);
}

void Arena::release_when(std::function<bool()> ready, Slot const& slot, Awaits awaits) {
  std::lock_guard const lock(mutex_);
  deferred_.push_back({std::move(ready), slot, awaits});
}

std::size_t Arena::waiting_for_readers() {
  std::lock_guard const lock(mutex_);
  collect_deferred();
  return as_size(std::ranges::count(deferred_, Awaits::reader, &Deferred::awaits));
}

void Arena::keep_with(Slot const& slot, std::shared_ptr<void const> object) {
  std::lock_guard const lock(mutex_);
  entries_[slot.id].kept.push_back(std::move(object));
  keeps_objects_.store(true, std::memory_order_relaxed);
}

void Arena::drop_kept() {
  drop_lent();
  if (!keeps_objects_.load(std::memory_order_relaxed)) return;
  std::vector<std::shared_ptr<void const>> dropped;  // destroyed after the lock, because that may take long
  std::lock_guard const lock(mutex_);
  bool keeps_objects = false;
  for (auto& entry : entries_) {
    if (entry.kept.empty()) continue;
    if (entry.state == State::held || (entry.state == State::released && !end_use(entry))) {
      keeps_objects = true;
      continue;
    }
    std::move(entry.kept.begin(), entry.kept.end(), std::back_inserter(dropped));
    entry.kept.clear();
  }
  keeps_objects_.store(keeps_objects, std::memory_order_relaxed);
}

std::vector<int> Arena::readers_of(Slot const& slot) const {
  std::lock_guard const lock(mutex_);
  auto const& entry = entries_[slot.id];
  bool const in_use = entry.state == State::held || entry.state == State::released;
  if (!in_use || entry.slot.generation != slot.generation) return {};
  auto found = holders(slot);
  found.leased.insert(found.leased.end(), found.offered.begin(), found.offered.end());
  std::ranges::sort(found.leased);
  return found.leased;
}

void Arena::release_locked(Slot const& slot) noexcept {
  auto& entry = entries_[slot.id];
  if (entry.state != State::held || entry.slot.generation != slot.generation) return;
  if (end_use(entry)) {
    entry.state = State::free;
    free_.emplace(entry.slot.bytes, slot.id);
  } else {
    entry.state = State::released;
    released_.push_back(slot.id);
  }
}

void Arena::offer(Slot const& slot, int reader) {
  if (leases_.offer(memory_.rank, slot.id, slot.generation, reader)) return;
  throw UsageError({.operation = "publish",
                    .message = "rank " + std::to_string(reader) + " of this node already holds this tensor " +
                               std::to_string(LeaseWord::count_limit) + " times",
                    .hint = "drop what was received before"});
}

bool Arena::revoke(Slot const& slot, int reader) noexcept {
  return leases_.revoke(memory_.rank, slot.id, slot.generation, reader);
}

std::optional<Slot> Arena::find(std::byte const* data, std::size_t bytes) const {
  auto const* const base = memory_.mapping->data();
  if (data < base || data >= base + memory_.mapping->size()) return std::nullopt;
  auto const offset = as_size(data - base);
  std::lock_guard const lock(mutex_);
  auto found = by_offset_.upper_bound(offset);
  if (found == by_offset_.begin()) return std::nullopt;
  auto const& entry = entries_[std::prev(found)->second];
  if (entry.state != State::held || offset + bytes > entry.slot.offset + entry.slot.bytes) return std::nullopt;
  return entry.slot;
}

bool Arena::page_lock(Slot const& slot, Device::Kind kind) {
  {
    std::lock_guard const lock(mutex_);
    auto const& entry = entries_[slot.id];
    if (entry.lock_tried) return entry.page_lock != nullptr;
  }
  // Without the mutex, because it takes long. The slot is in use, so its pages stay.
  auto made = lock_pages({at(slot), slot.bytes}, kind);
  bool const locked = made != nullptr;
  std::lock_guard const lock(mutex_);
  auto& entry = entries_[slot.id];
  entry.page_lock = std::move(made);
  entry.lock_tried = true;
  return locked;
}

Arena::Holders Arena::holders(Slot const& slot) const {
  Holders found;
  for (int reader = 0; reader < memory_.ranks; ++reader) {
    auto const word = leases_.load(memory_.rank, slot.id, reader);
    auto const state = static_cast<AttachState>(records_[reader].state.load(std::memory_order_acquire));
    if (!word.free() && state == AttachState::attached)
      (word.taken > 0 ? found.leased : found.offered).push_back(reader);
  }
  return found;
}

std::size_t Arena::trim() {
  std::lock_guard const lock(mutex_);
  return collect_and_trim();
}

std::size_t Arena::collect_and_trim() {
  collect();
  return trim_locked();
}

std::size_t Arena::trim_locked() {
  std::size_t given_back = 0;
  for (auto const& [capacity, id] : std::exchange(free_, {})) {
    entries_[id].page_lock.reset();
    entries_[id].lock_tried = false;
    give_back_end(id, capacity);
    given_back += capacity;
  }
  return given_back;
}

void Arena::add_cold(std::size_t offset, std::size_t bytes) {
  auto range = cold_.emplace(offset, bytes).first;
  if (auto const next = std::next(range); next != cold_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    cold_.erase(next);
  }
  if (range != cold_.begin()) {
    if (auto const before = std::prev(range); before->first + before->second == range->first) {
      before->second += range->second;
      cold_.erase(range);
      range = before;
    }
  }
  if (range->first + range->second != end_) return;
  end_ = range->first;
  cold_.erase(range);
}

void Arena::give_back_end(std::uint32_t id, std::size_t bytes) {
  auto& entry = entries_[id];
  auto& slot = entry.slot;
  slot.bytes -= bytes;
  auto const offset = slot.offset + slot.bytes;
  release_pages(*memory_.fd, offset, bytes);
  add_cold(offset, bytes);
  unreserve(bytes);
  if (slot.bytes != 0) return;
  by_offset_.erase(slot.offset);
  entry.lock_tried = false;
  entry.state = State::unused;
  unused_ids_.push_back(id);
}

Arena::Usage Arena::usage() {
  std::lock_guard const lock(mutex_);
  collect();
  std::size_t free = 0;
  for (auto const& [capacity, id] : free_) free += capacity;
  return {reserved_, reserved_ - free};
}

}  // namespace crossrank::node
