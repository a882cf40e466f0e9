#include "collectives/shm/device_inbox.hpp"

#include <utility>

#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/log.hpp"
#include "lib/node/memory/leases.hpp"

namespace crossrank::shm {
namespace {

/// The leases of an open outbox. The second one is taken when the memory is open.
struct OutboxLeases {
  std::shared_ptr<void const> keeps{};
  std::shared_ptr<void const> is_open{};
};

/// Ends a lease. Does not hold the `NodeComm`: a stream may need the memory after the rank has closed its groups, and
/// the rank has left the node then.
struct LeaseEnd {
  std::shared_ptr<node::Mapping> control;
  int ranks;
  int reader;
  int owner;
  OutboxId slot;
  pid_t process = ::getpid();

  void operator()(void const*) const noexcept {
    if (process != ::getpid()) return;  // a forked child has no leases
    node::LeaseTable(control->data(), ranks).drop(owner, slot.slot, slot.generation, reader);
  }
};

}  // namespace

std::shared_ptr<void const> hold(node::NodeComm const& comm, int owner, OutboxId slot) {
  if (slot.slot >= comm.slot_capacity() || !comm.leases().hold(owner, slot.slot, slot.generation, comm.rank()))
    return nullptr;
  auto const& control = comm.control_mapping();
  return {control.get(),
          LeaseEnd{.control = control, .ranks = comm.ranks(), .reader = comm.rank(), .owner = owner, .slot = slot}};
}

void DeviceInbox::open(int owner, OutboxRecord const& announced, std::shared_ptr<void const> lease) {
  if (outboxes_.empty()) outboxes_.resize(as_size(comm_->ranks()));
  auto& outbox = at_rank(outboxes_, owner);
  if (outbox.id == announced.id) return;  // open, or refused
  outbox = {.id = announced.id};
  if (!lease) return;
  auto const leases = std::make_shared<OutboxLeases>();
  leases->keeps = std::move(lease);
  try {
    auto memory = spi::device_provider(announced.memory.kind).open_shared(announced.memory, leases);
    leases->is_open = hold(*comm_, owner, announced.id);
    outbox.memory = std::move(memory);
  } catch (Error const& e) {
    log_event(LogLevel::info, "messages of another rank's GPU go through host memory",
              {{"rank of the node", std::to_string(owner)}, {"error", e.what()}});
  }
}

DevicePayload DeviceInbox::find(int owner, SlotRecord const& where, std::size_t bytes,
                                std::shared_ptr<void const> lease) const {
  if (outboxes_.empty() || !lease) return {};
  auto const& outbox = at_rank(outboxes_, owner);
  if (!outbox.memory || !(outbox.id == where.outbox)) return {};
  auto const size = outbox.memory->size_bytes();
  if (where.offset > size || bytes > size - where.offset) return {};
  return {.memory = outbox.memory, .offset = where.offset, .lease = std::move(lease)};
}

}  // namespace crossrank::shm
