#include "workspace/shared_memory/published_contribution.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>
#include <crossrank/spi/storage.hpp>

#include "lib/codec/message/config_binary.hpp"
#include "lib/codec/message/tensor_table.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/log.hpp"
#include "lib/core/rank_list.hpp"
#include "lib/node/group/bulk_copy.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/system.hpp"
#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/transfer/host_copies.hpp"
#include "lib/tensor/transfer/staged_read.hpp"
#include "workspace/shared_memory/arena_storage.hpp"

namespace crossrank::workspace {
namespace {

constexpr std::size_t tensor_alignment = 64;
constexpr int populate_read =
    22;  // MADV_POPULATE_READ, Linux 5.14; older kernels refuse it, and pages are mapped on first access
constexpr std::size_t worth_populating = std::size_t{1} << 18;

/// Start of a slab. The table follows directly, then the tensors.
struct SlabHead {
  std::uint64_t table_bytes;
  std::uint64_t data_offset;
};

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + tensor_alignment - 1) / tensor_alignment * tensor_alignment;
}

/// The table entries of a contribution. Arena-backed tensors name their slot; the others are laid out in the slab.
struct Layout {
  codec::TableEntries entries;
  boost::container::small_vector<std::size_t, 2> copied;  ///< indices of tensors that must be copied
  /// A tensor whose handle is in the slab.
  struct InPlace {
    std::size_t index = 0;
    spi::SharedDeviceMemory memory{};
  };
  std::vector<InPlace> in_place;
  std::size_t data_bytes = 0;
};

/// Describes a tensor on a GPU for other processes. Nothing when it must be copied.
std::optional<spi::SharedDeviceMemory> share_in_place(Tensor const& tensor, std::string_view name) {
  auto memory = spi::device_provider(tensor.device().kind).share(tensor.device(), tensor.data(), tensor.nbytes());
  if (!memory) {
    log_event(LogLevel::info, "a tensor is copied, because other processes cannot open its memory",
              {{"tensor", std::string(name)}, {"hint", "make it with MemoryOptions::shareable"}});
  }
  return memory;
}

Layout lay_out(node::NodeComm& comm, Contribution const& contribution, bool in_place,
               PublishedContribution::Slots& arena_backed) {
  Layout layout;
  layout.entries.reserve(contribution.tensors.size());
  auto const* const arena = comm.arena_of(comm.rank());
  for (auto const& [name, tensor] : contribution.tensors) {
    auto& entry = layout.entries.emplace_back();
    entry.name = name;
    entry.present = tensor->defined();
    if (!entry.present) continue;
    if (on_gpu(*tensor)) require_usable(*tensor, "publish");
    entry.dtype = tensor->dtype();
    entry.shape = tensor->shape();
    entry.nbytes = tensor->nbytes();
    if (auto const slot = comm.arena().find(tensor->data(), tensor->nbytes()); slot && entry.nbytes != 0) {
      entry.slot = slot->id;
      entry.generation = slot->generation;
      entry.offset = as_size(tensor->data() - arena);
      arena_backed.push_back(*slot);
      continue;
    }
    entry.offset = layout.data_bytes;
    if (in_place && on_gpu(*tensor) && entry.nbytes != 0) {
      if (auto const memory = share_in_place(*tensor, name)) {
        entry.slot = codec::in_place;
        layout.data_bytes = aligned(layout.data_bytes + sizeof *memory);
        layout.in_place.push_back({layout.entries.size() - 1, *memory});
        continue;
      }
    }
    layout.data_bytes = aligned(layout.data_bytes + entry.nbytes);
    if (entry.nbytes != 0) layout.copied.push_back(layout.entries.size() - 1);
  }
  return layout;
}

/// Copies tensors into a slab. The GPU's copies run while this thread copies the tensors of the CPU.
class SlabWriter {
 public:
  SlabWriter(node::NodeComm& comm, Contribution const& contribution, Layout const& layout, node::Slot const& slab,
             std::byte* data)
      : comm_(comm), contribution_(contribution), layout_(layout), slab_(slab), data_(data) {}

  /// After an error the slab is used again once no copy is under way any more.
  void run(std::chrono::milliseconds timeout) {
    try {
      enqueue_device_copies();
      write_handles();
      for (auto const index : layout_.copied) copy_on_host(index);
      from_devices_.wait(timeout);
    } catch (...) {
      comm_.arena().release_when(from_devices_.ended(), slab_);
      throw;
    }
  }

 private:
  [[nodiscard]] Tensor const& tensor(std::size_t index) const { return *contribution_.tensors[index].tensor; }
  [[nodiscard]] std::byte* place(std::size_t index) const { return data_ + layout_.entries[index].offset; }

  void write_handles() {
    for (auto const& one : layout_.in_place) {
      from_devices_.prepare(tensor(one.index));
      std::memcpy(place(one.index), &one.memory, sizeof one.memory);
    }
  }

  void enqueue_device_copies() {
    for (auto const index : layout_.copied) {
      if (!on_gpu(tensor(index))) continue;
      from_devices_.prepare(tensor(index));
      page_locked_ = comm_.arena().page_lock(slab_, tensor(index).device().kind);
      if (!page_locked_) return;
      from_devices_.add(place(index), tensor(index));
    }
  }

  void copy_on_host(std::size_t index) {
    auto const& from = tensor(index);
    if (!on_gpu(from)) {
      node::bulk_copy(comm_, place(index), from.data(), from.nbytes(), layout_.data_bytes);
    } else if (!page_locked_) {
      read_in_pieces(from, [this, to = place(index)](std::span<std::byte const> piece) mutable {
        node::bulk_copy(comm_, to, piece.data(), piece.size(), layout_.data_bytes);
        to += piece.size();
      });
    }
  }

  node::NodeComm& comm_;
  Contribution const& contribution_;
  Layout const& layout_;
  node::Slot slab_;
  std::byte* data_;
  HostCopies from_devices_{"publish"};
  bool page_locked_ = false;
};

/// Keeps the memory that the slab has handles of, and freezes it, as long as readers hold the slab.
void lend_in_place(node::NodeComm& comm, Contribution const& contribution, Layout const& layout,
                   PublishedContribution& published) {
  auto const slab = *published.slab;
  for (auto const& one : layout.in_place) {
    auto const& storage = contribution.tensors[one.index].tensor->storage();
    static_cast<void>(storage->hold([lender = comm.weak_from_this(), slab] {
      auto const alive = lender.lock();
      auto const readers = alive ? alive->arena().readers_of(slab) : std::vector<int>();
      return readers.empty() ? std::string() : "given in place to " + name_ranks(readers) + " of this node";
    }));
    comm.arena().keep_with(slab, storage);
  }
}

void fill_slab(node::NodeComm& comm, Contribution const& contribution, Layout const& layout,
               codec::TableInput const& table, PublishedContribution& published, std::chrono::milliseconds timeout) {
  auto const table_bytes = codec::encoded_size(table);
  SlabHead const head{table_bytes, aligned(sizeof(SlabHead) + table_bytes)};
  published.bytes = head.data_offset + layout.data_bytes;
  published.slab = comm.arena().allocate(published.bytes);
  CROSSRANK_CRASH_POINT("workspace.publish.slab_taken");
  auto* const base = comm.arena().at(*published.slab);
  std::memcpy(base, &head, sizeof head);
  codec::encode(table, {base + sizeof head, table_bytes});
  SlabWriter(comm, contribution, layout, *published.slab, base + head.data_offset).run(timeout);
  lend_in_place(comm, contribution, layout, published);
  CROSSRANK_CRASH_POINT("workspace.publish.copied");
}

/// Makes all offers or none. Offers are only counted, so an offer that was not made must not be revoked.
void offer_all(node::Arena& arena, PublishedContribution const& published, std::span<int const> readers) {
  boost::container::small_vector<std::pair<node::Slot, int>, 2> made;
  auto const offer = [&](node::Slot const& slot, int reader) {
    arena.offer(slot, reader);
    made.emplace_back(slot, reader);
  };
  try {
    for (int const reader : readers) {
      if (published.slab) offer(*published.slab, reader);
      for (auto const& slot : published.arena_backed) offer(slot, reader);
    }
  } catch (Error const&) {
    for (auto const& [slot, reader] : made) arena.revoke(slot, reader);
    throw;
  }
}

/// Prefetches the lease words, which the last reader still holds in its cache. Several arrive in the time of one.
void fetch_words(node::NodeComm& comm, PublishedContribution const& published, std::span<int const> readers) {
  if (published.arena_backed.empty()) return;
  node::prefetch_claim(comm.own_record());
  for (int const reader : readers) {
    for (auto const& slot : published.arena_backed) comm.leases().prefetch(comm.rank(), slot.id, reader);
  }
}

/// Returns whether the table fits into the arrival line. With arena-backed tensors it also needs a claim.
bool fits_line(node::NodeComm& comm, PublishedContribution& published, std::size_t table_bytes) {
  if (table_bytes > node::Arrival::inline_bytes) return false;
  if (published.arena_backed.empty()) return true;
  published.claim = node::open_claim(comm.own_record());
  return published.claim.has_value();
}

}  // namespace

void PublishedContribution::describe(node::Post& post) const {
  if (!slab) {
    post.inlined = {inlined.data(), inlined.size()};
    if (claim) post.slot = {.id = claim->word, .generation = claim->sequence};
    return;
  }
  post.slot = *slab;
  post.offset = slab->offset;
  post.bytes = bytes;
}

PublishedContribution publish(node::NodeComm& comm, Contribution const& contribution, std::span<int const> readers,
                              PublishOptions const& options) {
  PublishedContribution published;
  comm.arena().drop_kept();
  auto const layout = lay_out(comm, contribution, options.in_place, published.arena_backed);
  fetch_words(comm, published, readers);
  auto const config =
      contribution.config == nullptr ? std::string() : codec::encode_config_binary(*contribution.config);
  codec::TableInput const table{config, {layout.entries.data(), layout.entries.size()}};
  auto const table_bytes = codec::encoded_size(table);
  if (options.small == InlinePolicy::allowed && layout.data_bytes == 0 && fits_line(comm, published, table_bytes)) {
    published.inlined.resize(table_bytes);
    codec::encode(table, {published.inlined.data(), published.inlined.size()});
  } else {
    fill_slab(comm, contribution, layout, table, published, options.timeout);
  }
  try {
    offer_all(comm.arena(), published, readers);
  } catch (Error const&) {
    if (published.claim) static_cast<void>(node::win_claim(comm.own_record(), *published.claim));
    release(comm, published);
    throw;
  }
  CROSSRANK_CRASH_POINT("workspace.publish.offered");
  return published;
}

void revoke(node::NodeComm& comm, PublishedContribution const& published, std::span<int const> readers) noexcept {
  auto& arena = comm.arena();
  if (published.claim && !node::win_claim(comm.own_record(), *published.claim)) return;
  for (int const reader : readers) {
    // The rank that won the slab takes or declines the other offers.
    if (published.slab && !arena.revoke(*published.slab, reader)) continue;
    for (auto const& slot : published.arena_backed) arena.revoke(slot, reader);
  }
}

void release(node::NodeComm& comm, PublishedContribution const& published) noexcept {
  if (published.slab) comm.arena().release(*published.slab);
}

// ---------------------------------------------------------------- receiver

namespace {

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
  SlabHead head{};
  if (at.payload.size() < sizeof head) fail_slab(at, "the slab is shorter than its head");
  std::memcpy(&head, at.payload.data(), sizeof head);
  if (head.data_offset > at.payload.size() || head.table_bytes > at.payload.size() - sizeof head ||
      sizeof head + head.table_bytes > head.data_offset) {
    fail_slab(at, "the table lies outside its slab");
  }
  auto const data = at.payload.subspan(head.data_offset);
  return {codec::decode(at.payload.subspan(sizeof head, head.table_bytes), data.size()), data};
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
  if (memory.bytes != entry.nbytes) fail_slab(at, "a handle of GPU memory is of another length than its tensor");
  auto opened = spi::device_provider(Device::Kind::cuda).open_shared(memory, slab);
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
  auto const data_offset = as_size(parts.data.data() - at.payload.data());
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
