#include "workspace/shared_memory/remote_contribution.hpp"

#include <cstring>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>
#include <crossrank/spi/storage.hpp>

#include "lib/codec/message/config_binary.hpp"
#include "lib/codec/message/tensor_table.hpp"
#include "lib/core/as_size.hpp"
#include "lib/device/device_kinds.hpp"
#include "lib/node/memory/offer_claim.hpp"
#include "lib/platform/system.hpp"
#include "workspace/shared_memory/arena_storage.hpp"
#include "workspace/shared_memory/contribution_head.hpp"

namespace crossrank::workspace {
namespace {

// MADV_POPULATE_READ, Linux 5.14. Older kernels refuse it, and pages are mapped on first access.
constexpr int populate_read = 22;
constexpr std::size_t worth_populating = std::size_t{1} << 18;

/// A published contribution as its reader sees it: the table, and the tensors in the slab.
struct Parts {
  codec::TableView table;
  std::span<std::byte const> data;
};

[[noreturn]] void fail_slab(RemoteContribution const& at, std::string message) {
  throw FormatError({.operation = "receive",
                     .message = std::move(message),
                     .resource = "arena of rank " + std::to_string(at.owner),
                     .failed_ranks = {at.owner},
                     .section = "slab"});
}

Parts open_payload(RemoteContribution const& at) {
  if (at.is_inline) return {codec::decode(at.payload, 0), {}};
  auto const parts = divide(at.payload);
  if (!parts) fail_slab(at, "the head of the slab is cut off, or the table lies outside the slab");
  return {codec::decode(parts->table, parts->data.size()), parts->data};
}

/// Takes the leases of one published contribution: one for the slab and one for each arena-backed slot, even when
/// several tensors share a slot.
class LeaseTaker {
 public:
  LeaseTaker(std::shared_ptr<node::NodeComm> const& comm, RemoteContribution const& at, LeaseMode how)
      : comm_(comm), at_(at), how_(how) {}

  /// Returns false when the offer was revoked.
  [[nodiscard]] bool take(std::uint32_t slot, std::uint64_t generation, std::span<std::byte const> range,
                          std::shared_ptr<spi::Storage>& out) {
    auto& leases = comm_->leases();
    bool const taken = how_ == LeaseMode::offer ? leases.take(at_.owner, slot, generation, comm_->rank())
                                                : leases.share(at_.owner, slot, generation, comm_->rank());
    if (!taken) return false;
    out = std::make_shared<LeasedStorage>(comm_, at_.owner, slot, generation, range);
    if (range.size() >= worth_populating) {
      auto const into_page = reinterpret_cast<std::uintptr_t>(range.data()) % node::page_bytes;
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): madvise does not write
      auto* const page = const_cast<std::byte*>(range.data()) - into_page;
      if (comm_->first_read(at_.owner, slot)) {
        platform::system().madvise(page, as_size(range.data() + range.size() - page), populate_read);
      }
    }
    return true;
  }

  /// Wins the published contribution, so that this reader disposes of its offers. Also takes the slab's lease, if there
  /// is a slab.
  [[nodiscard]] bool win(std::shared_ptr<spi::Storage>& slab) {
    if (!at_.is_inline) return take(at_.slot, at_.generation, at_.payload, slab);
    return how_ != LeaseMode::offer || at_.generation == 0 ||
           node::win_claim(comm_->record(at_.owner), {at_.slot, at_.generation});
  }

  /// Prefetches the lease words of arena-backed tensors.
  void prefetch(codec::TableEntries const& entries) const noexcept {
    for (auto const& entry : entries) {
      if (entry.slot < comm_->slot_capacity()) comm_->leases().prefetch(at_.owner, entry.slot, comm_->rank());
    }
  }

  /// Takes the lease of an arena-backed tensor's slot. A slot that backs several tensors was offered once per tensor.
  [[nodiscard]] bool take_arena_backed(codec::TableEntry const& entry, std::shared_ptr<spi::Storage>& out) {
    auto const all = comm_->arena_bytes();
    bool const inside =
        entry.slot < comm_->slot_capacity() && entry.offset <= all && entry.nbytes <= all - entry.offset;
    if (!inside) fail_slab(at_, "a tensor lies outside its arena");
    return take(entry.slot, entry.generation, {comm_->arena_of(at_.owner) + entry.offset, entry.nbytes}, out);
  }

 private:
  std::shared_ptr<node::NodeComm> const& comm_;
  RemoteContribution const& at_;
  LeaseMode how_;
};

/// Declines the offers of a won contribution that the reader does not take.
class DeclineGuard {
 public:
  DeclineGuard(node::NodeComm& comm, RemoteContribution const& at, LeaseMode how, codec::TableEntries const& entries)
      : comm_(comm), at_(at), left_(entries.data(), how == LeaseMode::offer ? entries.size() : 0) {}
  ~DeclineGuard() {
    for (auto const& entry : left_) {
      if (entry.present && entry.slot < comm_.slot_capacity())
        comm_.leases().decline(at_.owner, entry.slot, entry.generation, comm_.rank());
    }
  }
  DeclineGuard(DeclineGuard const&) = delete;
  DeclineGuard& operator=(DeclineGuard const&) = delete;
  /// Must be called in the order of the entries.
  void taken(codec::TableEntry const& entry) noexcept {
    if (!left_.empty()) left_ = left_.subspan(as_size(&entry - left_.data()) + 1);
  }

 private:
  node::NodeComm& comm_;
  RemoteContribution const& at_;
  std::span<codec::TableEntry const> left_;
};

/// Opens a tensor that stays on its owner's GPU. The lease of the slab ends after the last view.
Tensor open_in_place(std::shared_ptr<node::NodeComm> const& comm, RemoteContribution const& at, Parts const& parts,
                     std::shared_ptr<spi::Storage> const& slab, codec::TableEntry const& entry) {
  spi::SharedDeviceMemory memory;
  if (entry.offset > parts.data.size() || parts.data.size() - entry.offset < sizeof memory)
    fail_slab(at, "a handle of GPU memory lies outside its slab");
  std::memcpy(&memory, parts.data.data() + entry.offset, sizeof memory);
  if (memory.kind == Device::Kind::cpu || !device::kind_of(static_cast<std::uint64_t>(memory.kind)))
    fail_slab(at, "a handle of GPU memory names no kind of GPU");
  if (memory.bytes != entry.nbytes) fail_slab(at, "a handle of GPU memory is of another length than its tensor");
  auto opened = spi::device_provider(memory.kind).open_shared(memory, slab);
  return spi::tensor_from_storage(std::make_shared<LentDeviceStorage>(comm, at.owner, std::move(opened)), 0,
                                  entry.shape, entry.dtype);
}

}  // namespace

bool receive(std::shared_ptr<node::NodeComm> const& comm, RemoteContribution const& at, LeaseMode how,
             Collector& collector) {
  LeaseTaker leases(comm, at, how);
  std::shared_ptr<spi::Storage> slab;
  if (at.is_inline && at.generation != 0) node::prefetch_claim(comm->record(at.owner), at.slot);
  // Take the lease before reading the bytes: without it the owner may reuse the memory.
  if (!at.is_inline && !leases.win(slab)) return false;
  auto const parts = open_payload(at);
  leases.prefetch(parts.table.entries);
  if (at.is_inline && !leases.win(slab)) return false;
  DeclineGuard rest(*comm, at, how, parts.table.entries);
  collector.expect(parts.table.entries.size());
  if (!parts.table.config.empty())
    collector.config(codec::decode_config_binary(std::as_bytes(std::span(parts.table.config))));
  auto const data_offset = parts.data.empty() ? std::size_t{0} : as_size(parts.data.data() - at.payload.data());
  for (auto const& entry : parts.table.entries) {
    if (!entry.present) {
      collector.tensor(entry.name, Tensor());
    } else if (entry.slot == codec::in_place) {
      collector.tensor(entry.name, open_in_place(comm, at, parts, slab, entry));
      rest.taken(entry);
    } else if (entry.slot != codec::own_payload) {
      std::shared_ptr<spi::Storage> storage;
      if (!leases.take_arena_backed(entry, storage)) return false;
      rest.taken(entry);
      collector.tensor(entry.name, spi::tensor_from_storage(std::move(storage), 0, entry.shape, entry.dtype));
    } else if (entry.nbytes == 0) {
      collector.tensor(entry.name, Tensor::empty(entry.shape, entry.dtype));
    } else {
      collector.tensor(entry.name,
                       spi::tensor_from_storage(slab, data_offset + entry.offset, entry.shape, entry.dtype));
    }
  }
  return true;
}

void decline(node::NodeComm& comm, RemoteContribution const& at) noexcept {
  auto& leases = comm.leases();
  int const self = comm.rank();
  // Take the slab's lease while reading the table; it also decides who declines the other offers.
  bool const won = at.is_inline ? at.generation != 0 && node::win_claim(comm.record(at.owner), {at.slot, at.generation})
                                : leases.take(at.owner, at.slot, at.generation, self);
  if (!won) return;
  try {
    auto const parts = open_payload(at);
    DeclineGuard const rest(comm, at, LeaseMode::offer, parts.table.entries);
  } catch (Error const&) {  // an unreadable table names no slots; the lease of the slab still ends below
  }
  if (!at.is_inline) leases.drop(at.owner, at.slot, at.generation, self);
}

}  // namespace crossrank::workspace
