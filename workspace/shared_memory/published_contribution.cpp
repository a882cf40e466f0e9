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
#include "lib/core/text/rank_list.hpp"
#include "lib/node/group/bulk_copy.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/tensor_checks.hpp"
#include "lib/tensor/transfer/host_copies.hpp"
#include "lib/tensor/transfer/staged_read.hpp"
#include "workspace/shared_memory/contribution_head.hpp"

namespace crossrank::workspace {
namespace {

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
  for (auto const& named : contribution.tensors) {
    auto const& [name, tensor] = named;
    auto& entry = layout.entries.emplace_back(entry_of(named));
    if (!entry.present) continue;
    if (on_gpu(*tensor)) require_usable(*tensor, "publish");
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
      comm_.arena().release_when(from_devices_.ended(), slab_, node::Arena::Awaits::device);
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
  auto const head = ContributionHead::before(table_bytes);
  published.bytes = head.data_offset + layout.data_bytes;
  published.slab = comm.arena().allocate(published.bytes);
  CROSSRANK_CRASH_POINT("workspace.publish.slab_taken");
  auto* const base = comm.arena().at(*published.slab);
  std::memcpy(base, &head, sizeof head);
  auto const or_release = [&](auto const& step) {
    try {
      step();
    } catch (...) {
      release(comm, published);
      throw;
    }
  };
  or_release([&] { codec::encode(table, {base + sizeof head, table_bytes}); });
  // Releases the slab itself, once no device copies into it.
  SlabWriter(comm, contribution, layout, *published.slab, base + head.data_offset).run(timeout);
  or_release([&] { lend_in_place(comm, contribution, layout, published); });
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

}  // namespace crossrank::workspace
