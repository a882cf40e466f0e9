#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/leases.hpp"
#include "lib/node/memory/segment.hpp"

namespace crossrank::node {

/// A piece of an arena: what a lease is held on. The generation counts the slot's uses.
struct Slot {
  std::uint32_t id = 0;
  std::uint64_t generation = 0;
  std::size_t offset = 0;
  std::size_t bytes = 0;  ///< capacity
};

/// A rank's own memory that its peers read: slots of pages that stay mapped and warm from one use to the next.
///
/// Only the owner allocates. Memory is reserved under the node's common cap before it is touched, so that its lack is
/// an `UnavailableError` that says wanted, used, cap and who holds what. Calls may come from several threads.
class Arena {
 public:
  struct Parts {
    std::shared_ptr<Mapping> memory{};
    std::shared_ptr<platform::Fd> fd{};
    std::shared_ptr<platform::Fd> control_fd{};
    std::shared_ptr<Mapping> control{};
    int rank = 0;
    int ranks = 1;
  };

  explicit Arena(Parts parts);
  ~Arena();
  Arena(Arena const&) = delete;
  Arena& operator=(Arena const&) = delete;

  /// A slot of at least `bytes`; warm when one is free. `UnavailableError` when the cap is reached, after trying to
  /// give back what is free; `IoError` when the system refuses pages below it.
  [[nodiscard]] Slot allocate(std::size_t bytes);
  /// The owner is done with the slot; it is used again once no reader holds it.
  void release(Slot const& slot) noexcept;
  /// The same once `ready` says so, which is asked when memory is short.
  void release_when(std::function<bool()> ready, Slot const& slot);
  /// In a forked child: gives nothing back that is the parent's.
  void abandon() noexcept { reserved_ = 0; }
  /// One offer of `slot` to `reader`. `UsageError` when the reader holds it 4,095 times already.
  void offer(Slot const& slot, int reader);
  /// False when the reader has taken it.
  bool revoke(Slot const& slot, int reader) noexcept;
  /// The slot in use that holds these bytes, or none: the memory is not from here.
  [[nodiscard]] std::optional<Slot> find(std::byte const* data, std::size_t bytes) const;
  /// Ranks that hold an offer or a lease of the slot.
  [[nodiscard]] std::vector<int> holders(Slot const& slot) const;
  /// Gives the pages of all free slots back; returns how many bytes.
  std::size_t trim();

  [[nodiscard]] std::byte* at(Slot const& slot) const noexcept { return parts_.memory->data() + slot.offset; }
  /// Bytes reserved by this arena, and those of them in use or under lease.
  struct Usage {
    std::size_t reserved = 0;
    std::size_t in_use = 0;
  };
  [[nodiscard]] Usage usage();

 private:
  enum class State : std::uint8_t { unused, free, held, released };
  struct Entry {
    Slot slot{};
    State state = State::unused;
    bool row_reserved = false;
  };

  struct Deferred {
    std::function<bool()> ready;
    Slot slot;
  };

  void collect();
  void release_locked(Slot const& slot) noexcept;
  [[nodiscard]] bool leased(Slot const& slot);
  [[nodiscard]] std::optional<Slot> take_free(std::size_t capacity);
  [[nodiscard]] Slot grow(std::size_t capacity);
  [[nodiscard]] bool reserve(std::size_t bytes) noexcept;
  void unreserve(std::size_t bytes) noexcept;
  void take_pages(std::uint32_t id, std::size_t capacity);
  [[nodiscard]] std::optional<std::size_t> place(std::size_t capacity);
  [[nodiscard]] std::uint32_t new_id();
  std::size_t trim_locked();
  [[nodiscard]] ErrorInfo no_space_error(std::size_t wanted);
  [[noreturn]] void fail_full(std::size_t wanted);
  [[noreturn]] void fail_refused(std::size_t wanted, int error);
  [[nodiscard]] std::string who_holds();

  Parts parts_;
  LeaseTable leases_;
  ControlHeader& header_;
  std::uint64_t cap_bytes_;  ///< as all ranks found it at the start
  RankRecord* records_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> unused_ids_;
  std::vector<Deferred> deferred_;
  std::vector<std::uint32_t> released_;             ///< waiting for their readers
  std::multimap<std::size_t, std::uint32_t> free_;  ///< warm, by capacity
  std::map<std::size_t, std::uint32_t> by_offset_;  ///< all slots that exist
  std::map<std::size_t, std::size_t> cold_;         ///< ranges without pages: offset -> bytes
  std::size_t end_ = 0;                             ///< no slot was ever beyond
  std::size_t reserved_ = 0;
};

}  // namespace crossrank::node
