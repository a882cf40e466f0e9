// A process of the same user overwrites the shared memory of the ranks. Every rank must end with an error; none may
// crash or wait forever.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/parallel.hpp>
#include <crossrank/workspace/shared_memory_workspace.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/node/group/group.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"

namespace crossrank::hostile_segment_test {
namespace {

constexpr int ranks = 4;
constexpr int trials_each = 10;
constexpr int words_each = 100;

/// Overwrites words of a control segment. Half of them are anywhere, half where the ranks read most: in block headers
/// and in the lines of members.
class Overwriter {
 public:
  Overwriter(node::NodeComm& comm, unsigned seed)
      : comm_(comm), geometry_(comm.ranks()), base_(reinterpret_cast<std::byte*>(&comm.header())), random_(seed) {}

  /// Hidden from the thread sanitizer, because the race is intended.
  __attribute__((no_sanitize("thread"))) void write_one() {
    auto volatile* const word = reinterpret_cast<std::uint64_t volatile*>(base_ + place());
    *word = value(*word);
  }

 private:
  std::uint64_t below(std::uint64_t limit) {
    return std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(random_);
  }

  /// Returns the offset of a word in the part of the segment that has pages.
  std::size_t place() {
    auto const made = std::max<std::uint32_t>(1, comm_.blocks().made());
    auto const block = geometry_.groups_offset() + below(made) * geometry_.group_stride();
    switch (below(8)) {
      case 0: return below(node::page_bytes / 8) * 8;
      case 1: return geometry_.records_offset() + below(ranks * sizeof(node::RankRecord) / 8) * 8;
      case 2:
        return geometry_.flights_offset() + below((geometry_.groups_offset() - geometry_.flights_offset()) / 8) * 8;
      case 3: return block + below(32) * 8;                              // state, size, parent, name, decision
      case 4: return block + sizeof(node::GroupHeader) + below(80) * 8;  // header and endpoints of a queue
      case 5: return member(block) + below(sizeof(node::MemberBlock) / 8) * 8;
      case 6: return member(block) + below(4) * sizeof(node::Arrival) + below(8) * 8;
      default: return block + below(geometry_.group_stride() / 8) * 8;
    }
  }
  std::size_t member(std::size_t block) {
    return block + sizeof(node::GroupHeader) + below(ranks) * sizeof(node::MemberBlock);
  }

  std::uint64_t value(std::uint64_t before) {
    switch (below(7)) {
      case 0: return random_();
      case 1: return below(16);
      case 2: return ~std::uint64_t{0};
      case 3: return before ^ std::uint64_t{1} << below(64);
      case 4: return before + 1;
      case 5: return (before & 0xffff'ffff) | random_() << 32;
      default: return (before & ~std::uint64_t{0xffff'ffff}) | (random_() & 0xffff'ffff);
    }
  }

  node::NodeComm& comm_;
  node::ControlGeometry geometry_;
  std::byte* base_;
  std::mt19937_64 random_;
};

/// Reads every byte: received memory must be readable, whether its content is right or wrong.
void read_all(std::span<std::byte const> bytes) {
  static std::atomic<unsigned> sum{0};
  sum += std::accumulate(bytes.begin(), bytes.end(), 0U,
                         [](unsigned all, std::byte b) { return all + static_cast<unsigned>(b); });
}

void pass_messages(Collective const& world) {
  int const next = (world.rank() + 1) % world.world_size();
  int const before = (world.rank() + world.world_size() - 1) % world.world_size();
  auto tensor = Tensor::zeros({3000}, Dtype::u8);
  auto request = world.irecv(tensor, before);
  world.send(test::sample_tensor(world.rank(), 1, 3000), next);
  request.wait();
  read_all(tensor.bytes());
}

void pass_through_queue(Collective const& world, int writer) {
  auto const queue = MessageQueue::create(world, {.writer_rank = writer, .chunk_bytes = 256, .chunks = 2});
  for (int i = 0; i < 4; ++i) {
    if (queue.is_writer()) {
      queue.enqueue_tensor(test::sample_tensor(writer, i, i == 2 ? 3000 : 100));
    } else if (auto const tensor = queue.dequeue_tensor()) {
      read_all(tensor->bytes());
    }
  }
  queue.close();
}

void share_states(Collective const& world) {
  SharedMemoryWorkspace workspace(world);
  StateDict weights;
  weights.insert_or_assign("a", test::sample_tensor(world.rank(), 2, 5000));
  workspace.write_configs_and_weights({{"rank", world.rank()}}, weights);
  world.barrier();
  for (int rank = 0; rank < world.world_size(); ++rank) {
    auto const state = workspace.read_configs_and_weights_from_rank(rank);
    if (state && state->weights.contains("a")) read_all(state->weights.at("a").bytes());
  }
  world.barrier();
}

void gather(Collective const& group, int receiver) {
  auto const mine = test::sample_tensor(group.global_rank(), 3, 5000);
  auto const all = test::ranks_from(group, receiver);
  auto tensors = get_tensors_parallel(mine, all, group);
  for (auto const& tensor : tensors) read_all(tensor.bytes());
  tensors.close();
  RankState state{.config = {{"rank", group.rank()}}};
  state.weights.insert_or_assign("small", test::sample_tensor(group.global_rank(), 4, 16));
  auto states = get_configs_parallel(state, all, group);
  for (auto const& one : states) {
    for (auto const& [name, tensor] : one.state.weights) read_all(tensor.bytes());
  }
}

/// Runs some operations of ranks on one node. The received data may be wrong.
void work(Collective const& world, int round) {
  world.barrier();
  for (std::int64_t const bytes : {100, 5000, 700'000}) {
    auto tensor = test::sample_tensor(world.rank(), round, bytes);
    world.broadcast(tensor, {.root = round % world.world_size()});
    read_all(tensor.bytes());
    auto joined = Tensor::zeros({world.world_size(), bytes}, Dtype::u8);
    world.all_gather(joined, tensor);
    read_all(joined.bytes());
  }
  pass_messages(world);
  gather(world, round % world.world_size());
  share_states(world);
  pass_through_queue(world, round % world.world_size());
  auto const half = world.split({{0, 1}, {3, 2}});
  half.barrier();
  gather(half, round % 2);
}

/// Rank 0 overwrites words while all ranks work, and works until it has written them all. Argument: seed.
CROSSRANK_RANK_SCENARIO(work_while_words_are_overwritten) {
  auto const seed = static_cast<unsigned>(std::stoul(self.arguments.at(0)));
  std::thread writer;
  std::atomic<bool> written{false};
  auto const code = test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options(std::chrono::milliseconds(1500)));
    world.barrier();
    if (self.rank == 0) {
      writer = std::thread([seed, &written, comm = node::group_of(world.transport()->node_memory())->shared_comm()] {
        Overwriter overwriter(*comm, seed);
        for (int word = 0; word < words_each; ++word) {
          overwriter.write_one();
          std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so that the ranks read some of them meanwhile
        }
        written = true;
      });
    }
    // If no write did harm, rank 0 leaves the others after the last one.
    for (int round = 0; !written; ++round) work(world, round);
  });
  if (writer.joinable()) writer.join();
  return code;
}

class HostileSegment : public testing::TestWithParam<unsigned> {};

TEST_P(HostileSegment, makes_all_ranks_fail_with_typed_errors) {
  std::set<std::string> const known{"usage",  "mismatch", "timeout", "peer_lost",
                                    "remote", "io",       "format",  "unavailable"};
  // Rank 0 alone may end without an error: it leaves the others when all words are written.
  auto const first = std::random_device{}();
  for (int trial = 0; trial < trials_each; ++trial) {
    auto const seed = first + static_cast<unsigned>(trial) + 1000 * GetParam();
    auto const job = test::run_ranks(ranks, "work_while_words_are_overwritten",
                                     {.deadline = std::chrono::seconds(150), .arguments = {std::to_string(seed)}});
    EXPECT_FALSE(job.timed_out);
    EXPECT_TRUE(job.leaks.empty());
    for (auto const& rank : job.ranks) {
      EXPECT_TRUE(rank.ok());
      auto const code = test::verdict_of(rank).code;
      EXPECT_TRUE(known.contains(code) || (code == "ok" && &rank == &job.ranks.front())) << code;
    }
    if (HasFailure()) {
      ADD_FAILURE() << "seed " << seed << "\n" << job.text();
      break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, HostileSegment, testing::Values(0U, 1U, 2U, 3U));

}  // namespace
}  // namespace crossrank::hostile_segment_test
