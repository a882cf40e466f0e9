#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/device.hpp>
#include <crossrank/error.hpp>

#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/leases.hpp"
#include "lib/node/memory/segment.hpp"

namespace crossrank::node {

/// A piece of an arena, on which leases are held. The generation counts the uses of the slot.
struct Slot {
  std::uint32_t id = 0;
  std::uint64_t generation = 0;
  std::size_t offset = 0;
  std::size_t bytes = 0;  ///< capacity
};

/// The mapped memory of an arena and of its node's control segment.
struct ArenaMemory {
  std::shared_ptr<Mapping> mapping{};
  std::shared_ptr<platform::Fd> fd{};
  std::shared_ptr<platform::Fd> control_fd{};
  std::shared_ptr<Mapping> control{};
  int rank = 0;  ///< that owns the arena
  int ranks = 1;
};

/// A rank's own memory, which its peers read. Consists of slots whose pages stay mapped between uses.
///
/// Only the owner allocates. The arena reserves memory under the common cap of the node before touching it. When memory
/// is short, the `UnavailableError` says how much was wanted, how much is used, the cap, and which ranks hold what.
/// Thread-safe.
class Arena {
 public:
  explicit Arena(ArenaMemory memory);
  ~Arena();
  Arena(Arena const&) = delete;
  Arena& operator=(Arena const&) = delete;

  /// Says what `allocate` does when the cap is reached and this arena has no free pages. It always asks the other ranks
  /// to return the pages of their free slots. They need a quarter of a second, longer for gigabytes. Ranks that are
  /// threads do not return them.
  enum class WhenFull : std::uint8_t {
    wait,  ///< it waits for them
    ask    ///< it fails; for callers who try again
  };
  /// Allocates a slot of at least `bytes`, with mapped pages if one is free. When the cap is reached it first frees
  /// unused pages, then throws `UnavailableError`. `IoError` when the system refuses pages below the cap.
  [[nodiscard]] Slot allocate(std::size_t bytes, WhenFull when_full = WhenFull::wait);
  /// Releases the slot. It is used again once no reader holds it.
  void release(Slot const& slot) noexcept;
  /// What a deferred release waits for.
  enum class Awaits : std::uint8_t { departure, reader, device };
  /// Releases the slot once `ready` returns true. `ready` is called when memory is short.
  void release_when(std::function<bool()> ready, Slot const& slot, Awaits awaits = Awaits::departure);
  /// Makes the deferred releases that are due. Returns how many still wait for a reader.
  [[nodiscard]] std::size_t waiting_for_readers();
  /// Keeps an object until the slot, which is in use, can be used again. `drop_kept` looks at that, and so do calls
  /// that need memory. Objects of an arena that has ended stay while readers hold their slots; each arena of the
  /// process that begins or ends looks at those.
  void keep_with(Slot const& slot, std::shared_ptr<void const> object);
  /// Drops the objects of slots that nobody reads any more, and those of ended arenas of this process.
  void drop_kept();
  /// Prevents the destructor from releasing the memory. Called in a forked child: the memory is the parent's.
  void abandon() noexcept { abandoned_ = true; }
  /// Makes one offer of `slot` to `reader`. `UsageError` when the reader already holds 4,095.
  void offer(Slot const& slot, int reader);
  /// Revokes an offer. Returns false when the reader has taken it.
  bool revoke(Slot const& slot, int reader) noexcept;
  /// Returns the slot in use that holds these bytes; none when the memory is not in this arena.
  [[nodiscard]] std::optional<Slot> find(std::byte const* data, std::size_t bytes) const;
  /// Ranks that may read a slot.
  struct Holders {
    std::vector<int> leased{};   ///< they hold a lease
    std::vector<int> offered{};  ///< they hold an offer only
    [[nodiscard]] bool empty() const noexcept { return leased.empty() && offered.empty(); }
  };
  [[nodiscard]] Holders holders(Slot const& slot) const;
  /// Returns the same for this use of the slot: none once it can be used again.
  [[nodiscard]] std::vector<int> readers_of(Slot const& slot) const;
  /// Returns the pages of all free slots to the system. Returns the number of bytes.
  std::size_t trim();

  /// Does so when another rank has asked for it, unless another thread is in a call. For the watchdog thread: returns
  /// after a fraction of a second, and continues in the next call; waits for nothing, and leaves page-locked slots to
  /// `trim`.
  void trim_if_asked() noexcept;

  /// Page-locks a slot in use, so that devices of that kind copy it without staging. The lock stays as long as the
  /// slot's pages, over all uses of the slot. Returns false, with one warning per process, when the driver refuses.
  [[nodiscard]] bool page_lock(Slot const& slot, Device::Kind kind);

  [[nodiscard]] std::byte* at(Slot const& slot) const noexcept { return memory_.mapping->data() + slot.offset; }
  struct Usage {
    std::size_t reserved = 0;
    std::size_t in_use = 0;  ///< or under lease
  };
  /// Returns the bytes that this arena has reserved, and how many of them are in use.
  [[nodiscard]] Usage usage();

 private:
  enum class State : std::uint8_t { unused, free, held, released };
  struct Entry {
    Slot slot{};
    State state = State::unused;
    std::vector<std::shared_ptr<void const>> kept{};  ///< see `keep_with`
    bool lock_tried = false;                          ///< whether `page_lock` has been called for these pages
    std::shared_ptr<void> page_lock{};                ///< undone before the pages go
  };

  struct Deferred {
    std::function<bool()> ready;
    Slot slot;
    Awaits awaits = Awaits::departure;
  };

  /// Whether a call may be made of a device's driver, which may make the thread wait.
  enum class Driver : std::uint8_t { called, not_called };
  /// Frees the slots that nobody reads any more.
  void collect(Driver driver = Driver::called);
  /// Makes the deferred releases that are due.
  void collect_deferred(Driver driver = Driver::called);
  void release_locked(Slot const& slot) noexcept;
  /// Returns whether nobody reads the slot any more. Then no rank can take a lease on the objects kept with it.
  [[nodiscard]] bool end_use(Entry const& entry) const;
  [[nodiscard]] std::optional<Slot> take_free(std::size_t capacity);
  [[nodiscard]] Slot grow(std::size_t capacity, WhenFull when_full);
  [[nodiscard]] bool reserve(std::size_t bytes) noexcept;
  void unreserve(std::size_t bytes) noexcept;
  void take_pages(std::uint32_t id, std::size_t capacity, WhenFull when_full);
  /// Asks the other ranks to return the pages of their free slots, and reserves the bytes once they suffice.
  [[nodiscard]] bool reserve_after_trims(std::size_t bytes, WhenFull when_full);
  /// Reserves pages and maps them. Returns 0 or errno.
  [[nodiscard]] int map_pages(std::size_t offset, std::size_t bytes);
  [[nodiscard]] std::optional<std::size_t> place(std::size_t capacity);
  [[nodiscard]] std::uint32_t new_id();
  std::size_t trim_locked();
  std::size_t collect_and_trim();
  /// Returns the bytes that peers may still read when the arena ends, and hands over the objects kept with them. Peers
  /// read slots on which they hold offers or leases, and slots whose release is deferred. These stay reserved, because
  /// their pages stay until the last mapping is gone.
  [[nodiscard]] std::size_t lend_rest();
  /// Makes a range without pages available again.
  void add_cold(std::size_t offset, std::size_t bytes);
  /// Returns the pages at the end of a free slot that is not in `free_`, and ends the slot if no page is left.
  void give_back_end(std::uint32_t id, std::size_t bytes);
  [[nodiscard]] ErrorInfo no_space_error(std::size_t wanted);
  [[noreturn]] void fail_full(std::size_t wanted);
  [[noreturn]] void fail_without_range(std::size_t wanted);
  [[noreturn]] void fail_refused(std::size_t wanted, int error);
  [[nodiscard]] std::string who_holds();

  ArenaMemory memory_;
  LeaseTable leases_;
  ControlHeader& header_;
  std::uint64_t cap_bytes_;  ///< the same on all ranks
  RankRecord* records_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> unused_ids_;
  std::vector<Deferred> deferred_;
  std::vector<std::uint32_t> released_;             ///< released slots that readers still hold
  std::multimap<std::size_t, std::uint32_t> free_;  ///< slots with mapped pages, by capacity
  std::map<std::size_t, std::uint32_t> by_offset_;  ///< all slots that exist
  std::map<std::size_t, std::size_t> cold_;         ///< ranges without pages: offset -> bytes
  std::size_t end_ = 0;                             ///< end of the highest slot so far
  std::size_t reserved_ = 0;
  std::size_t growth_before_collect_ = 0;    ///< how many bytes are added before `released_` is searched again
  std::uint32_t trims_seen_ = 0;             ///< of `ControlHeader::trims_asked`
  std::chrono::nanoseconds ask_again_at_{};  ///< the other ranks have been asked shortly before
  std::atomic<bool> keeps_objects_{false};   ///< false: no entry has any, so that `drop_kept` needs no lock
  bool abandoned_ = false;
};

}  // namespace crossrank::node
