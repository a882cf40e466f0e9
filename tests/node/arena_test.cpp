#include "lib/node/memory/arena.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/node/memory/counters.hpp"
#include "lib/node/memory/lent_objects.hpp"
#include "lib/platform/process_state.hpp"
#include "tests/node/node_memory.hpp"
#include "tests/support/faulty_system.hpp"

namespace crossrank::node {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::size_t page = 4096;
constexpr std::size_t mebi = std::size_t{1} << 20;

struct ArenaTest : testing::Test {
  [[nodiscard]] std::uint64_t reserved() const { return memory.header().reserved_bytes; }
  test::NodeMemory memory{3, 8 * mebi};
  std::unique_ptr<Arena> arena = memory.arena(0);
};

TEST_F(ArenaTest, reuses_a_free_slot_without_growing) {
  auto const first = arena->allocate(100'000);
  arena->release(first);
  auto const growths = counters().arena_growths.load();
  auto generation = first.generation;
  for (int i = 0; i < 100; ++i) {
    auto const again = arena->allocate(100'000 - as_size(i));
    EXPECT_EQ(again.offset, first.offset);
    EXPECT_GT(again.generation, generation);
    generation = again.generation;
    arena->release(again);
  }
  EXPECT_EQ(counters().arena_growths.load(), growths);
}

TEST_F(ArenaTest, allocates_little_more_than_requested) {
  for (std::size_t const bytes : {std::size_t{1}, page, page + 1, std::size_t{777'777}}) {
    auto const slot = arena->allocate(bytes);
    EXPECT_GE(slot.bytes, bytes);
    EXPECT_LE(slot.bytes, std::max(2 * page, bytes + bytes / 4));
    std::memset(arena->at(slot), 0x5a, bytes);
  }
}

TEST_F(ArenaTest, reports_requested_used_cap_and_holders_when_full) {
  auto const own = arena->allocate(2 * mebi);  // NOLINT(clang-analyzer-deadcode.DeadStores): released at the end
  auto const lent = arena->allocate(4 * mebi);
  arena->offer(lent, 2);
  ASSERT_TRUE(memory.leases().take(0, lent.id, lent.generation, 2));
  arena->release(lent);
  try {
    static_cast<void>(arena->allocate(3 * mebi));
    FAIL() << "expected an error: the arena is full";
  } catch (UnavailableError const& e) {
    EXPECT_THAT(e.what(), HasSubstr(std::to_string(3 * mebi)));
    EXPECT_THAT(e.what(), HasSubstr(std::to_string(6 * mebi) + " of at most " + std::to_string(8 * mebi)));
    EXPECT_THAT(e.what(), HasSubstr("own tensors " + std::to_string(2 * mebi)));
    EXPECT_THAT(e.what(), HasSubstr("rank 2 " + std::to_string(4 * mebi)));
    EXPECT_THAT(e.info().hint, HasSubstr("CROSSRANK_ARENA_CAP"));
  }
  memory.leases().drop(0, lent.id, lent.generation, 2);
  EXPECT_EQ(arena->at(arena->allocate(4 * mebi)), arena->at(lent));
  arena->release(own);
}

/// A state that a rank has published stays until its workspace is cleaned.
TEST_F(ArenaTest, names_only_leases_as_leases_when_full) {
  auto const slot = arena->allocate(5 * mebi);
  for (int const reader : {0, 1, 2}) arena->offer(slot, reader);
  ASSERT_TRUE(memory.leases().take(0, slot.id, slot.generation, 2));
  EXPECT_THAT(arena->holders(slot).leased, ElementsAre(2));
  EXPECT_THAT(arena->readers_of(slot), ElementsAre(0, 1, 2));
  try {
    static_cast<void>(arena->allocate(5 * mebi));
    ADD_FAILURE() << "allocated";
  } catch (UnavailableError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("published for ranks that have not read them 5242880 bytes"));
    EXPECT_THAT(error.what(), HasSubstr("leased by rank 2 5242880 bytes"));
    EXPECT_THAT(error.what(), Not(HasSubstr("leased by rank 1")));
  }
}

TEST_F(ArenaTest, shares_the_cap_with_the_other_arenas) {
  auto const other = memory.arena(1);
  static_cast<void>(other->allocate(5 * mebi));
  EXPECT_THROW(static_cast<void>(arena->allocate(4 * mebi)), UnavailableError);
  static_cast<void>(arena->allocate(3 * mebi));
  EXPECT_EQ(reserved(), 8 * mebi);
}

TEST_F(ArenaTest, gives_free_slots_back_before_it_fails) {
  auto const slot = arena->allocate(5 * mebi);
  arena->release(slot);
  static_cast<void>(arena->allocate(1 * mebi));  // a request of more than half its size would take the free slot
  static_cast<void>(arena->allocate(7 * mebi));
  EXPECT_EQ(reserved(), 8 * mebi);
}

TEST_F(ArenaTest, asks_the_other_ranks_for_their_free_slots_before_it_fails) {
  auto const other = memory.arena(1);
  other->release(other->allocate(5 * mebi));
  auto const held = other->allocate(mebi);
  memory.record(1).heartbeat = 1;  // its watchdog thread is the one below
  std::atomic<bool> ended{false};
  std::thread watchdog([&] {
    while (!ended) other->trim_if_asked();
  });
  auto const slot = arena->allocate(6 * mebi);
  EXPECT_EQ(reserved(), 7 * mebi);
  EXPECT_THROW(static_cast<void>(arena->allocate(2 * mebi)), UnavailableError);
  arena->release(slot);
  other->release(held);
  ended = true;
  watchdog.join();
}

TEST_F(ArenaTest, waits_as_long_as_the_other_ranks_return_memory) {
  auto const other = memory.arena(1);
  std::vector<Slot> held;
  for (int i = 0; i < 8; ++i) held.push_back(other->allocate(mebi));
  memory.record(1).heartbeat = 1;
  test::FaultySystem os;
  os.fake_clock();
  os.on_sleep = [&] {  // returns a mebibyte every 200 of the arena's naps of a millisecond
    if (os.sleeps() % 200 != 0 || held.empty()) return;
    other->release(held.back());
    held.pop_back();
    other->trim_if_asked();
    memory.header().trims_asked += 1;  // so that it looks again
  };
  platform::ScopedSystem const installed(os);
  static_cast<void>(arena->allocate(6 * mebi));
  EXPECT_EQ(reserved(), 8 * mebi);
  EXPECT_GE(os.sleeps(), 1'200);
}

TEST_F(ArenaTest, asks_without_waiting_for_callers_who_try_again) {
  auto const other = memory.arena(1);
  other->release(other->allocate(5 * mebi));
  memory.record(1).heartbeat = 1;
  test::FaultySystem os;
  os.fake_clock();
  platform::ScopedSystem const installed(os);
  for (int i = 0; i < 3; ++i)
    EXPECT_THROW(static_cast<void>(arena->allocate(6 * mebi, Arena::WhenFull::ask)), UnavailableError);
  EXPECT_EQ(os.sleeps(), 0);
  EXPECT_EQ(memory.header().trims_asked, 1U) << "it asks a few times a second";
  other->trim_if_asked();
  static_cast<void>(arena->allocate(6 * mebi, Arena::WhenFull::ask));
}

/// The reader may come late. The other ranks have memory now.
TEST_F(ArenaTest, asks_the_other_ranks_while_a_message_is_unread) {
  auto const other = memory.arena(1);
  other->release(other->allocate(5 * mebi));
  memory.record(1).heartbeat = 1;
  arena->release_when([] { return false; }, arena->allocate(page), Arena::Awaits::reader);
  test::FaultySystem os;
  os.fake_clock();
  os.on_sleep = [&] { other->trim_if_asked(); };
  platform::ScopedSystem const installed(os);
  static_cast<void>(arena->allocate(6 * mebi));
}

TEST_F(ArenaTest, does_not_ask_ranks_that_have_left) {
  auto const other = memory.arena(1);
  other->release(other->allocate(5 * mebi));
  memory.record(1).heartbeat = 1;
  memory.record(1).state = static_cast<std::uint32_t>(AttachState::left);
  test::FaultySystem os;
  os.fake_clock();
  platform::ScopedSystem const installed(os);
  EXPECT_THROW(static_cast<void>(arena->allocate(6 * mebi)), UnavailableError);
  EXPECT_EQ(os.sleeps(), 0);
}

/// A clock that each look at it moves.
struct BusyClock : platform::System {
  std::chrono::nanoseconds now() override { return time += std::chrono::milliseconds(30); }
  std::chrono::nanoseconds time{0};
};

/// A watchdog thread that returned gigabytes at once would give no sign of life meanwhile.
TEST(ArenaTrim, returns_a_part_of_its_pages_between_two_heartbeats) {
  test::NodeMemory const memory(2, 512 * mebi, 256 * mebi);
  auto const arena = memory.arena(1);
  auto const small = arena->allocate(page);
  auto const large = arena->allocate(192 * mebi);
  arena->release(large);
  memory.header().trims_asked = 1;
  BusyClock clock;
  platform::ScopedSystem const installed(clock);
  std::uint64_t const kept = small.bytes;
  for (std::uint64_t const left : {128 * mebi, 64 * mebi, std::size_t{0}, std::size_t{0}}) {
    arena->trim_if_asked();
    EXPECT_EQ(memory.header().reserved_bytes, left + kept);
  }
  auto const again = arena->allocate(192 * mebi);
  EXPECT_EQ(again.offset, large.offset) << "the pieces are one range again";
}

TEST_F(ArenaTest, trims_only_free_slots) {
  auto const kept = arena->allocate(mebi);
  auto const freed = arena->allocate(2 * mebi);
  std::memset(arena->at(freed), 1, freed.bytes);
  arena->release(freed);
  EXPECT_EQ(arena->usage().reserved, 3 * mebi);
  EXPECT_EQ(arena->usage().in_use, mebi);
  EXPECT_EQ(arena->trim(), 2 * mebi);
  EXPECT_EQ(arena->trim(), 0U);
  EXPECT_EQ(reserved(), mebi);
  auto const again = arena->allocate(2 * mebi);
  EXPECT_EQ(again.offset, freed.offset);
  EXPECT_EQ(static_cast<int>(*arena->at(again)), 0);  // fresh pages
  arena->release(kept);
}

TEST_F(ArenaTest, merges_adjacent_ranges_that_it_gave_back) {
  std::vector<Slot> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(arena->allocate(2 * mebi));
  for (std::size_t const i : {std::size_t{0}, std::size_t{2}, std::size_t{1}}) {
    arena->release(slots[i]);
    EXPECT_EQ(arena->trim(), 2 * mebi);
  }
  EXPECT_EQ(arena->allocate(6 * mebi).offset, slots[0].offset);
}

/// The cap allows more than the arena has addresses.
TEST(ArenaRange, of_free_slots_is_used_for_longer_ones) {
  test::NodeMemory const memory(1, 64 * mebi, 16 * mebi);
  auto const arena = memory.arena(0);
  for (auto const size : {10 * mebi, 14 * mebi, 6 * mebi, 16 * mebi}) {
    auto const slot = arena->allocate(size);
    EXPECT_EQ(slot.offset, 0U) << size;
    arena->release(slot);
  }
}

TEST(ArenaRange, is_named_when_it_is_too_short) {
  test::NodeMemory const memory(1, 64 * mebi, 16 * mebi);
  auto const arena = memory.arena(0);
  auto const first = arena->allocate(10 * mebi);
  try {
    static_cast<void>(arena->allocate(8 * mebi));
    ADD_FAILURE() << "allocated";
  } catch (UnavailableError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("no consecutive addresses for " + std::to_string(8 * mebi)));
    EXPECT_EQ(error.info().got, std::to_string(6 * mebi) + " bytes");
  }
  EXPECT_EQ(memory.header().reserved_bytes, first.bytes);
  static_cast<void>(arena->allocate(6 * mebi));
}

TEST_F(ArenaTest, keeps_a_slot_while_a_reader_holds_it) {
  auto const slot = arena->allocate(mebi);
  arena->offer(slot, 1);
  EXPECT_THAT(arena->holders(slot).offered, ElementsAre(1));
  arena->release(slot);
  auto const other = arena->allocate(mebi);
  EXPECT_NE(other.offset, slot.offset);
  arena->revoke(slot, 1);
  EXPECT_TRUE(arena->holders(slot).empty());
  EXPECT_EQ(arena->allocate(mebi).offset, slot.offset);
}

TEST_F(ArenaTest, takes_a_slot_back_from_a_dead_reader) {
  auto const slot = arena->allocate(mebi);
  arena->offer(slot, 1);
  ASSERT_TRUE(memory.leases().take(0, slot.id, slot.generation, 1));
  arena->release(slot);
  memory.record(1).state = static_cast<std::uint32_t>(AttachState::dead);
  EXPECT_EQ(arena->allocate(mebi).offset, slot.offset);
  EXPECT_TRUE(memory.leases().load(0, slot.id, 1).free());
}

TEST_F(ArenaTest, ignores_a_stale_release) {
  auto const stale = arena->allocate(mebi);
  arena->release(stale);
  auto const now = arena->allocate(mebi);
  arena->release(stale);
  EXPECT_NE(arena->allocate(mebi).offset, now.offset);
}

TEST_F(ArenaTest, defers_a_release_until_it_is_ready) {
  auto const slot = arena->allocate(mebi);
  bool ready = false;
  arena->release_when([&] { return ready; }, slot);
  EXPECT_NE(arena->allocate(mebi).offset, slot.offset);
  ready = true;
  EXPECT_EQ(arena->allocate(mebi).offset, slot.offset);
}

TEST_F(ArenaTest, counts_the_slots_that_wait_for_a_reader) {
  auto const read = arena->allocate(mebi);
  auto const left = arena->allocate(mebi);
  bool is_read = false;
  arena->release_when([&] { return is_read; }, read, Arena::Awaits::reader);
  arena->release_when([] { return false; }, left);
  EXPECT_EQ(arena->waiting_for_readers(), 1U);
  is_read = true;
  EXPECT_EQ(arena->waiting_for_readers(), 0U);
  EXPECT_EQ(arena->allocate(mebi).offset, read.offset);
}

TEST_F(ArenaTest, refuses_more_offers_than_a_word_can_count) {
  auto const slot = arena->allocate(10);
  for (std::uint32_t i = 0; i < LeaseWord::count_limit; ++i) arena->offer(slot, 1);
  try {
    arena->offer(slot, 1);
    FAIL() << "expected an error: the count is at its limit";
  } catch (UsageError const& e) {
    EXPECT_THAT(e.what(), HasSubstr("4095"));
  }
}

TEST_F(ArenaTest, finds_the_slot_that_holds_given_bytes) {
  auto const slot = arena->allocate(10'000);
  ASSERT_TRUE(arena->find(arena->at(slot) + 5000, 5000));
  EXPECT_EQ(arena->find(arena->at(slot) + 5000, 5000)->id, slot.id);
  EXPECT_FALSE(arena->find(arena->at(slot) + 5000, slot.bytes));
  std::byte elsewhere{};
  EXPECT_FALSE(arena->find(&elsewhere, 1));
  arena->release(slot);
  EXPECT_FALSE(arena->find(arena->at(slot), 1));
}

TEST_F(ArenaTest, restores_the_reservation_when_pages_are_refused) {
  test::FaultySystem faulty;
  platform::ScopedSystem const installed(faulty);
  faulty.fail(test::Call::fallocate, 2, ENOSPC);  // the first is for the lease words
  try {
    static_cast<void>(arena->allocate(mebi));
    FAIL() << "expected an error: there are no pages";
  } catch (IoError const& e) {
    EXPECT_EQ(e.system_errno(), ENOSPC);
  }
  EXPECT_EQ(reserved(), 0U);
  static_cast<void>(arena->allocate(8 * mebi));
}

TEST_F(ArenaTest, refuses_sizes_beyond_the_arena) {
  EXPECT_THROW(static_cast<void>(arena->allocate(17 * mebi)), UnavailableError);
  EXPECT_THROW(static_cast<void>(arena->allocate(~std::size_t{0} - 5)), UnavailableError);
  EXPECT_EQ(reserved(), 0U);
}

TEST_F(ArenaTest, returns_its_reservation_when_destroyed) {
  static_cast<void>(arena->allocate(3 * mebi));
  arena.reset();
  EXPECT_EQ(reserved(), 0U);
}

TEST_F(ArenaTest, keeps_leased_slots_reserved_when_destroyed) {
  static_cast<void>(arena->allocate(3 * mebi));
  auto const offered = arena->allocate(mebi);
  arena->offer(offered, 2);
  arena.reset();
  EXPECT_EQ(reserved(), mebi);
}

TEST_F(ArenaTest, keeps_slots_reserved_whose_release_is_deferred_when_destroyed) {
  auto const read = arena->allocate(mebi);
  auto const unread = arena->allocate(2 * mebi);
  bool is_read = false;
  arena->release_when([&] { return is_read; }, read);
  arena->release_when([] { return false; }, unread);
  is_read = true;
  arena.reset();
  EXPECT_EQ(reserved(), 2 * mebi);
}

/// Peers map the arena until they leave the group, so its pages would stay.
TEST_F(ArenaTest, returns_the_pages_of_free_slots_when_destroyed) {
  class CountsReturnedPages final : public platform::System {
   public:
    int fallocate(int fd, int mode, off_t at, off_t bytes) override {
      if (mode != 0) returned += bytes;
      return System::fallocate(fd, mode, at, bytes);
    }
    off_t returned = 0;
  } system;
  platform::ScopedSystem const installed(system);
  auto const leased = arena->allocate(mebi);
  auto const free = arena->allocate(2 * mebi);
  auto const was_leased = arena->allocate(mebi);
  for (auto const& slot : {leased, was_leased}) arena->offer(slot, 1);
  for (auto const& slot : {leased, free, was_leased}) arena->release(slot);
  arena->revoke(was_leased, 1);
  arena.reset();
  EXPECT_EQ(system.returned, static_cast<off_t>(3 * mebi));
  EXPECT_EQ(reserved(), mebi);
}

/// A job with many ranks has few slots for each.
TEST(ArenaSlots, that_are_free_give_their_numbers_to_other_sizes) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer leaves no address space for the control segment of 4096 ranks";
#endif
  test::NodeMemory const memory(4096, 8 * mebi);
  auto const arena = memory.arena(0);
  std::vector<Slot> slots;
  EXPECT_THROW(for (;;) slots.push_back(arena->allocate(page)), UnavailableError);
  EXPECT_EQ(slots.size(), ControlGeometry(4096).slot_capacity());
  for (auto const& slot : slots) arena->release(slot);
  EXPECT_GE(arena->allocate(mebi).bytes, mebi);
}

TEST_F(ArenaTest, uses_slots_again_that_readers_held_for_long) {
  std::vector<Slot> slots;
  for (int i = 0; i < 100; ++i) {
    slots.push_back(arena->allocate(page));
    arena->offer(slots.back(), 1);
    arena->release(slots.back());
  }
  for (auto const& slot : slots) arena->revoke(slot, 1);
  std::size_t reused = 0;
  for (int i = 0; i < 100; ++i) reused += arena->allocate(page).offset <= slots.back().offset ? 1U : 0U;
  EXPECT_GE(reused, 80U);
}

/// A large slot costs more than the search for one.
TEST_F(ArenaTest, uses_a_large_slot_again_while_readers_hold_many_small_ones) {
  for (int i = 0; i < 100; ++i) {
    auto const small = arena->allocate(page);
    arena->offer(small, 1);
    arena->release(small);
  }
  auto const large = arena->allocate(mebi);
  arena->offer(large, 1);
  arena->release(large);
  static_cast<void>(arena->allocate(2 * mebi));  // searches in vain
  arena->revoke(large, 1);
  EXPECT_EQ(arena->allocate(mebi).offset, large.offset);
}

/// Such as those of a profiler. A kernel that is interrupted gives back what the call has added.
TEST_F(ArenaTest, grows_while_signals_interrupt_each_long_call) {
  class InterruptsLongCalls final : public platform::System {
   public:
    int fallocate(int fd, int mode, off_t at, off_t bytes) override {
      if (bytes <= static_cast<off_t>(64 * page)) return System::fallocate(fd, mode, at, bytes);
      errno = EINTR;
      return -1;
    }
  } system;
  platform::ScopedSystem const installed(system);
  auto const slot = arena->allocate(5 * mebi + page);
  std::memset(arena->at(slot), 1, slot.bytes);
  EXPECT_GE(slot.bytes, 5 * mebi + page);
}

/// An arena with an object that rank 1 reads.
std::weak_ptr<void const> lend_object(Arena& arena, test::NodeMemory const& memory, Slot& slot) {
  slot = arena.allocate(page);
  auto const object = std::make_shared<int>(1);
  arena.keep_with(slot, object);
  arena.offer(slot, 1);
  EXPECT_TRUE(memory.leases().take(0, slot.id, slot.generation, 1));
  return object;
}

TEST_F(ArenaTest, keeps_objects_beyond_its_end_until_their_reader_drops_them) {
  Slot slot;
  auto const object = lend_object(*arena, memory, slot);
  arena.reset();
  test::NodeMemory const other(2, 8 * mebi);
  auto const next = other.arena(0);
  EXPECT_FALSE(object.expired());
  memory.leases().drop(0, slot.id, slot.generation, 1);
  EXPECT_FALSE(object.expired());
  next->drop_kept();
  EXPECT_TRUE(object.expired());
}

TEST_F(ArenaTest, drops_objects_of_an_ended_arena_when_the_reader_dies) {
  Slot slot;
  auto const object = lend_object(*arena, memory, slot);
  arena.reset();
  memory.record(1).state = static_cast<std::uint32_t>(AttachState::dead);
  test::NodeMemory const other(2, 8 * mebi);
  EXPECT_FALSE(object.expired());
  auto const next = other.arena(0);
  EXPECT_TRUE(object.expired());
}

/// A message names the object, and the reader takes it after the owner has ended.
TEST_F(ArenaTest, ends_without_a_lease_so_that_no_reader_can_take_one_on_an_object_that_has_gone) {
  auto const slot = arena->allocate(page);
  arena->keep_with(slot, std::make_shared<int>(1));
  arena.reset();
  EXPECT_FALSE(memory.leases().hold(0, slot.id, slot.generation, 1));
}

TEST_F(ArenaTest, ends_under_a_lease_so_that_no_reader_can_take_a_second_one_on_an_object_that_has_gone) {
  Slot slot;
  auto const object = lend_object(*arena, memory, slot);
  arena.reset();
  EXPECT_TRUE(memory.leases().hold(0, slot.id, slot.generation, 1));
  for (int lease = 0; lease < 2; ++lease) memory.leases().drop(0, slot.id, slot.generation, 1);
  drop_lent();
  EXPECT_TRUE(object.expired());
  EXPECT_FALSE(memory.leases().hold(0, slot.id, slot.generation, 1));
}

TEST_F(ArenaTest, drops_no_object_on_which_a_reader_can_take_a_lease) {
  auto const slot = arena->allocate(page);
  arena->keep_with(slot, std::make_shared<int>(1));
  arena->release(slot);
  arena->drop_kept();
  EXPECT_FALSE(memory.leases().hold(0, slot.id, slot.generation, 1));
  auto const next = arena->allocate(page);
  EXPECT_EQ(next.id, slot.id);
  EXPECT_TRUE(memory.leases().hold(0, next.id, next.generation, 1));
}

/// A GPU may read for a process that exits or has been killed, until the process has ended.
TEST_F(ArenaTest, keeps_objects_until_the_process_of_their_reader_has_ended) {
  pid_t const ended = ::fork();
  if (ended == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(ended, nullptr, 0), ended);
  auto& reader = memory.record(1);
  reader.pid_namespace = platform::pid_namespace();
  for (auto const state : {AttachState::left, AttachState::dead}) {
    reader.state = static_cast<std::uint32_t>(AttachState::attached);
    Slot slot;
    auto const object = lend_object(*arena, memory, slot);
    arena->release(slot);
    reader.pid = ::getpid();
    reader.state = static_cast<std::uint32_t>(state);
    arena->drop_kept();
    EXPECT_FALSE(object.expired());
    reader.pid = ended;
    arena->drop_kept();
    EXPECT_TRUE(object.expired());
  }
}

/// Without an object, the memory is read by threads of the reader only.
TEST_F(ArenaTest, uses_memory_again_when_its_reader_has_died_or_its_process_has_ended) {
  memory.record(1).pid = ::getpid();
  memory.record(1).pid_namespace = platform::pid_namespace();
  auto const slot = arena->allocate(mebi);
  arena->offer(slot, 1);
  ASSERT_TRUE(memory.leases().take(0, slot.id, slot.generation, 1));
  arena->release(slot);
  memory.record(1).state = static_cast<std::uint32_t>(AttachState::left);
  auto const other = arena->allocate(mebi);
  EXPECT_NE(other.offset, slot.offset);
  memory.record(1).state = static_cast<std::uint32_t>(AttachState::dead);
  EXPECT_EQ(arena->allocate(mebi).offset, slot.offset);
}

}  // namespace
}  // namespace crossrank::node
