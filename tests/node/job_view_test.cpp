#include "lib/node/inspect/job_view.hpp"

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/node/inspect/flight_recorder.hpp"
#include "tests/node/rendezvous_support.hpp"

namespace crossrank::node {
namespace {

/// A control segment on its own pages, before any rank has joined.
class Segment {
 public:
  explicit Segment(int ranks) : geometry_(ranks), pages_(geometry_.base_bytes() / page_bytes + spare_pages) {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): placement new owns nothing
    auto* const header = new (bytes()) ControlHeader{};
    header->version = layout_version;
    header->ranks = static_cast<std::uint32_t>(ranks);
    header->magic = control_magic;
  }
  [[nodiscard]] std::byte* bytes() { return pages_.data()->bytes; }
  [[nodiscard]] ControlHeader& header() { return *reinterpret_cast<ControlHeader*>(bytes()); }
  [[nodiscard]] std::size_t size() const { return pages_.size() * page_bytes; }
  [[nodiscard]] ControlGeometry const& geometry() const { return geometry_; }

  static constexpr std::size_t spare_pages = 64;

 private:
  struct alignas(page_bytes) Page {
    std::byte bytes[page_bytes];
  };
  ControlGeometry geometry_;
  std::vector<Page> pages_;
};

/// Returns a span of the length that the segment claims. Only the part in its pages may be read.
std::span<std::byte const> whole(Segment& segment) { return {segment.bytes(), segment.geometry().total_bytes()}; }

TEST(JobView, shows_ranks_that_have_not_joined) {
  Segment segment(3);
  std::strcpy(segment.header().job, "a job");
  auto const view = view_job(whole(segment));
  EXPECT_EQ(view.job, "a job");
  EXPECT_FALSE(view.running);
  ASSERT_EQ(view.ranks.size(), 3U);
  EXPECT_EQ(view.ranks[2].status, RankStatus::absent);
  EXPECT_EQ(view.ranks[2].rank, 2);
}

TEST(JobView, refuses_memory_that_is_not_a_control_segment) {
  Segment segment(2);
  std::vector<std::byte> const little(100);
  EXPECT_THROW((void)view_job(little), FormatError);
  EXPECT_THROW((void)view_job({segment.bytes(), page_bytes}), FormatError) << "truncated";
  segment.header().version = layout_version + 1;
  EXPECT_THROW((void)view_job(whole(segment)), FormatError);
  segment.header().version = layout_version;
  segment.header().ranks = 0;
  EXPECT_THROW((void)view_job(whole(segment)), FormatError);
  segment.header().ranks = max_ranks + 1;
  EXPECT_THROW((void)view_job(whole(segment)), FormatError);
  segment.header().magic = 0;
  EXPECT_THROW((void)view_job(whole(segment)), FormatError);
}

/// Nothing that a rank has written, even half, may lead the reader out of the segment.
TEST(JobView, survives_any_bytes) {
  constexpr std::uint32_t blocks = 4;
  auto const seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int trial = 0; trial < 200; ++trial) {
    Segment segment(3);
    auto const from = segment.geometry().records_offset();
    auto const to = segment.geometry().groups_offset() + blocks * segment.geometry().group_stride();
    ASSERT_LE(to, segment.size());
    for (auto i = from; i < to; ++i) {
      if (random() % 4 != 0) segment.bytes()[i] = static_cast<std::byte>(random());
    }
    for (int rank = 0; rank < 3; ++rank) {
      auto* const records = reinterpret_cast<RankRecord*>(segment.bytes() + from);
      records[rank].state.store(random() % 4, std::memory_order_relaxed);
    }
    for (std::uint32_t index = 0; index < blocks; ++index) {
      auto* const group = reinterpret_cast<GroupHeader*>(segment.bytes() + segment.geometry().groups_offset() +
                                                         index * segment.geometry().group_stride());
      group->use_word.store(BlockUse{1, 0, random() % 2 == 0 ? BlockState::ready : BlockState::queue}.pack(),
                            std::memory_order_relaxed);
    }
    segment.header().groups_made.store(blocks, std::memory_order_relaxed);
    auto const view = view_job(whole(segment));
    EXPECT_EQ(view.ranks.size(), 3U) << "seed " << seed << ", trial " << trial;
    EXPECT_EQ(view.groups.size() + view.queues.size(), blocks) << "seed " << seed << ", trial " << trial;
  }
}

/// The segment of a running job may change at any time, including the word that determines its layout.
TEST(JobView, reads_the_number_of_ranks_once) {
  Segment segment(3);
  std::atomic<bool> over{false};
  std::thread writer([&] {
    std::atomic_ref ranks(segment.header().ranks);
    while (!over.load()) {
      ranks.store(static_cast<std::uint32_t>(max_ranks), std::memory_order_relaxed);
      ranks.store(3, std::memory_order_relaxed);
    }
  });
  int seen = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    try {
      EXPECT_EQ(view_job(whole(segment)).ranks.size(), 3U);
      ++seen;
    } catch (FormatError const& e) {
      EXPECT_EQ(e.section(), "control header");
    }
    if (HasFailure()) break;
  }
  over = true;
  writer.join();
  RecordProperty("seen", seen);
}

TEST(FlightRing, returns_recorded_operations_with_their_peer) {
  Segment segment(1);
  auto& ring = *reinterpret_cast<FlightRing*>(segment.bytes() + segment.geometry().flights_offset());
  write_flight(ring, FlightThread::first,
               {.op_kind = spi::OpKind::recv, .block = 255, .round = 7, .bytes = 1000, .peer = 4095}, 12345);
  auto const records = read_flight(ring);
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].note.op_kind, spi::OpKind::recv);
  EXPECT_EQ(records[0].note.block, 255U);
  EXPECT_EQ(records[0].note.round, 7U);
  EXPECT_EQ(records[0].note.bytes, 1000U);
  EXPECT_EQ(records[0].note.peer, 4095U);
  EXPECT_EQ(records[0].at, 12345U);
}

TEST(FlightRing, keeps_the_order_of_several_threads) {
  Segment segment(1);
  auto& ring = *reinterpret_cast<FlightRing*>(segment.bytes() + segment.geometry().flights_offset());
  for (std::uint64_t round = 1; round <= 6; ++round)
    write_flight(ring, round % 3 == 0 ? FlightThread::other : FlightThread::first,
                 {.op_kind = spi::OpKind::barrier, .round = round}, 0);
  std::vector<std::uint64_t> rounds;
  for (auto const& record : read_flight(ring)) rounds.push_back(record.note.round);
  EXPECT_THAT(rounds, testing::ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(FlightRing, keeps_all_operations_that_threads_of_a_rank_record_at_once) {
  constexpr std::uint32_t threads = 3;
  constexpr std::uint64_t rounds = 20;
  for (int trial = 0; trial < 200 && !HasFailure(); ++trial) {
    auto const comm = NodeComm::join(test::node_options(test::random_job_id(), 0, 1));
    std::atomic<std::uint32_t> ready{0};
    std::vector<std::thread> running;
    for (std::uint32_t block = 0; block < threads; ++block) {
      running.emplace_back([&, block] {
        ++ready;
        while (ready.load() < threads) {
        }
        for (std::uint64_t round = 1; round <= rounds; ++round)
          comm->note({.op_kind = spi::OpKind::broadcast, .block = block, .round = round});
      });
    }
    for (auto& thread : running) thread.join();

    auto const records = read_flight(comm->flight(0));
    EXPECT_EQ(records.size(), threads * rounds);
    std::map<std::uint32_t, std::uint64_t> last;
    for (auto const& record : records) EXPECT_EQ(record.note.round, ++last[record.note.block]) << record.note.block;
  }
}

TEST(FlightRing, keeps_the_last_operation_of_a_thread_that_records_less) {
  Segment segment(1);
  auto& ring = *reinterpret_cast<FlightRing*>(segment.bytes() + segment.geometry().flights_offset());
  write_flight(ring, FlightThread::other, {.op_kind = spi::OpKind::broadcast, .round = 9}, 0);
  for (std::uint64_t round = 1; round <= 1000; ++round)
    write_flight(ring, FlightThread::first, {.op_kind = spi::OpKind::barrier, .round = round}, 0);
  auto const records = read_flight(ring);
  ASSERT_EQ(records.size(), FlightRing::entries_of_first + 1);
  EXPECT_EQ(records.front().note.op_kind, spi::OpKind::broadcast);
  EXPECT_EQ(records.back().note.round, 1000U);
}

}  // namespace
}  // namespace crossrank::node
