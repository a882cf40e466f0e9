#include "collectives/shm/device_outbox.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::shm {
namespace {

/// A channel holds eight messages. More slots would only serve a sender with several receivers.
constexpr std::size_t most_slots = node::Channel::depth;
constexpr std::size_t most_outbox_bytes = std::size_t{256} << 20;

/// Polls until all entries are as wanted, and returns whether they are within the limit.
template <class Entries, class IsWanted>
bool wait_for(Entries const& entries, std::chrono::nanoseconds limit, std::function<void()> const& poll,
              IsWanted is_wanted) {
  auto const give_up_at = platform::system().now() + limit;
  platform::Backoff backoff;
  while (!std::ranges::all_of(entries, is_wanted)) {
    auto const now = platform::system().now();
    if (now >= give_up_at) return false;
    backoff.pause(give_up_at - now);
    poll();
  }
  return true;
}

}  // namespace

std::unique_ptr<DeviceOutbox> DeviceOutbox::make(std::shared_ptr<node::NodeComm> comm, Stream const& stream,
                                                 std::size_t bytes) {
  if (bytes > most_outbox_bytes) return nullptr;
  // Powers of two: an outbox that grows leaves fewer bytes behind at its receivers than it has.
  auto const slot_bytes = std::bit_ceil(bytes);
  auto const slots = std::min(most_slots, most_outbox_bytes / slot_bytes);
  auto const device = stream.device();
  auto& provider = spi::device_provider(device.kind);
  try {
    auto const storage = provider.allocate(stream, {.bytes = slots * slot_bytes, .shareable = true});
    auto const memory = provider.share(device, storage->data(), storage->size_bytes());
    if (!memory) return nullptr;
    std::unique_ptr<DeviceOutbox> outbox(new DeviceOutbox(std::move(comm), slot_bytes));
    outbox->record_.memory = *memory;
    outbox->divide(storage, slots);
    return outbox;
  } catch (UnavailableError const&) {  // host memory is left
    return nullptr;
  }
}

DeviceOutbox::DeviceOutbox(std::shared_ptr<node::NodeComm> comm, std::size_t slot_bytes)
    : comm_(std::move(comm)),
      slot_bytes_(slot_bytes),
      anchor_(comm_->arena().allocate(sizeof(OutboxRecord))),
      announced_(as_size(comm_->ranks())) {
  record_.id = {.generation = anchor_.generation, .slot = anchor_.id};
}

void DeviceOutbox::divide(std::shared_ptr<spi::Storage> const& storage, std::size_t slots) {
  auto& arena = comm_->arena();
  arena.keep_with(anchor_, storage);
  for (std::size_t i = 0; i < slots; ++i) {
    SlotRecord const where{.outbox = record_.id, .offset = i * slot_bytes_};
    auto slot = std::make_shared<DeviceSlot>();
    *slot = {.data = storage->data() + where.offset, .storage = storage, .number = i};
    entries_.push_back({.slot = std::move(slot), .described = arena.allocate(sizeof where)});
    std::memcpy(arena.at(entries_.back().described), &where, sizeof where);
  }
}

DeviceOutbox::~DeviceOutbox() {
  if (!comm_->is_own_process()) return;
  auto& arena = comm_->arena();
  for (auto& entry : entries_) {
    if (entry.taken) {
      arena.release_when(std::move(entry.taken), entry.described, node::Arena::Awaits::reader);
    } else {
      arena.release(entry.described);
    }
  }
  std::erase_if(announced_, [](auto const& taken) { return !taken; });
  auto all_taken = [announced = std::move(announced_)] {
    return std::ranges::all_of(announced, [](auto const& taken) { return taken(); });
  };
  arena.release_when(std::move(all_taken), anchor_);
  static_cast<void>(arena.waiting_for_readers());
  arena.drop_kept();
}

bool DeviceOutbox::is_open_by(int node_rank) const noexcept {
  auto const word = comm_->leases().load(comm_->rank(), anchor_.id, node_rank);
  return word.taken >= 2 && !comm_->has_departed(node_rank);
}

void DeviceOutbox::announced_to(int node_rank, std::function<bool()> taken) {
  at_rank(announced_, node_rank) = std::move(taken);
}

bool DeviceOutbox::is_idle(Entry const& entry) const {
  if (entry.slot.use_count() > 1 || !entry.slot->written.query()) return false;
  if (!entry.taken) return true;
  if (!entry.taken()) return false;
  return comm_->leases().load(comm_->rank(), entry.described.id, entry.reader).taken == 0 ||
         comm_->has_departed(entry.reader);
}

std::shared_ptr<DeviceSlot> DeviceOutbox::take() {
  auto const found = std::ranges::find_if(entries_, [this](Entry const& entry) { return is_idle(entry); });
  if (found == entries_.end()) return nullptr;
  if (found->taken) {
    comm_->leases().clear(comm_->rank(), found->described.id, found->reader);  // of a dead reader
    found->taken = nullptr;
  }
  return found->slot;
}

bool DeviceOutbox::is_lent() const noexcept {
  return std::ranges::any_of(entries_, [](Entry const& entry) { return entry.slot.use_count() > 1; });
}

bool DeviceOutbox::wait_until_taken(std::chrono::nanoseconds limit, std::function<void()> const& poll) const {
  return wait_for(entries_, limit, poll, [](Entry const& entry) { return !entry.taken || entry.taken(); });
}

void DeviceOutbox::wait_until_copied(std::chrono::nanoseconds limit, std::function<void()> const& poll) const {
  static_cast<void>(wait_for(entries_, limit, poll,
                             [this](Entry const& entry) { return !entry.taken || !entry.taken() || is_idle(entry); }));
}

void DeviceOutbox::sent(DeviceSlot const& slot, int node_rank, std::function<bool()> taken) {
  auto& entry = entries_[slot.number];
  entry.taken = std::move(taken);
  entry.reader = node_rank;
}

}  // namespace crossrank::shm
