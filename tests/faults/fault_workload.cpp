#include "tests/faults/fault_workload.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/parallel.hpp>
#include <crossrank/workspace/shared_memory_workspace.hpp>

#include "lib/core/as_size.hpp"
#include "tests/faults/fault_report.hpp"

namespace crossrank::test {
namespace {

constexpr std::int64_t large = 70'000;

/// Fills eight bytes at a time: these tests make and compare many tensors and are compiled without optimization.
std::uint64_t sample_word(int owner, int seed, std::size_t index) {
  auto const mixed = static_cast<std::uint64_t>(owner) * 131 + static_cast<std::uint64_t>(seed) * 17 + index * 7 + 1;
  return mixed * 0x9e3779b97f4a7c15;
}

RankState sample_state_of(int owner, int seed) {
  RankState state{.config = {{"rank", owner}, {"seed", seed}}};
  state.weights.insert_or_assign("a", sample_tensor(owner, seed));
  state.weights.insert_or_assign("b", sample_tensor(owner, seed + 1, large));
  return state;
}

void require(bool holds, std::string const& what) {
  if (!holds) throw std::runtime_error("wrong data: " + what);
}

void require_state(RankState const& state, int owner, int seed) {
  require(state.config == Json({{"rank", owner}, {"seed", seed}}), "config " + state.config.dump());
  require(state.weights.size() == 2, "tensors of rank " + std::to_string(owner));
  require_sample(state.weights.at("a"), owner, seed);
  require_sample(state.weights.at("b"), owner, seed + 1, large);
}

/// Makes the other ranks arrive at the end of the range before this one begins it.
void come_late(bool late) {
  if (late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void gather_configs(Collective const& group, std::vector<int> const& ranks, int seed, GatherOptions const& options) {
  auto states = get_configs_parallel(sample_state_of(group.global_rank(), seed), ranks, group, options);
  for (std::size_t i = 0; i < states.size(); ++i) {
    require(states[i].rank == ranks[i], "order of ranks");
    require_state(states[i].state, ranks[i], seed);
  }
}

void pass_messages(Collective const& world, int seed) {
  int const next = (world.rank() + 1) % world.world_size();
  int const before = (world.rank() + world.world_size() - 1) % world.world_size();
  world.send(sample_tensor(world.rank(), seed), next);
  auto tensor = Tensor::empty({5000}, Dtype::u8);
  world.recv(tensor, before);
  require_sample(tensor, before, seed);
}

void pass_through_queue(Collective const& world, int writer) {
  auto const queue = MessageQueue::create(world, {.writer_rank = writer, .chunk_bytes = 1024, .chunks = 2});
  for (int i = 0; i < 5; ++i) {
    auto const tensor = sample_tensor(writer, 80 + i, i == 2 ? 5000 : 100);
    if (queue.is_writer()) {
      queue.enqueue_tensor(tensor);
    } else {
      require_sample(queue.dequeue_tensor().value(), writer, 80 + i, i == 2 ? 5000 : 100);
    }
  }
  queue.close();
  require(queue.wait_for(step_timeout), "readers did not read everything");
  world.barrier();
}

void share_states(Collective const& world) {
  SharedMemoryWorkspace workspace(world);
  auto const mine = sample_state_of(world.rank(), 70);
  workspace.write_configs_and_weights(mine.config, mine.weights);
  world.barrier();
  for (int rank = 0; rank < world.world_size(); ++rank) {
    auto const state = workspace.read_configs_and_weights_from_rank(rank);
    require(state.has_value(), "state of rank " + std::to_string(rank));
    require_state(*state, rank, 70);
  }
  world.barrier();
}

}  // namespace

Tensor sample_tensor(int owner, int seed, std::int64_t bytes) {
  auto tensor = Tensor::empty({bytes}, Dtype::u8);
  auto const to = tensor.mutable_bytes();
  for (std::size_t at = 0; at < to.size(); at += sizeof(std::uint64_t)) {
    auto const word = sample_word(owner, seed, at);
    std::memcpy(to.data() + at, &word, std::min(sizeof word, to.size() - at));
  }
  return tensor;
}

void require_sample(Tensor const& tensor, int owner, int seed, std::int64_t bytes) {
  note_progress();
  require(tensor.defined() && tensor.nbytes() == as_size(bytes),
          "size of what rank " + std::to_string(owner) + " sent");
  auto const expected = sample_tensor(owner, seed, bytes);
  if (std::memcmp(tensor.bytes().data(), expected.bytes().data(), expected.nbytes()) == 0) return;
  auto const [got, wanted] =
      std::mismatch(tensor.bytes().begin(), tensor.bytes().end(), expected.bytes().begin(), expected.bytes().end());
  require(got == tensor.bytes().end(),
          "byte " + std::to_string(got - tensor.bytes().begin()) + " of rank " + std::to_string(owner));
}

void in_group(Collective const& group, std::function<void()> const& body) {
  note_progress();
  std::vector<int> const ranks(group.ranks().begin(), group.ranks().end());
  try {
    body();
  } catch (Error const& e) {
    auto info = e.info();
    for (auto& rank : info.failed_ranks) rank = ranks.at(as_size(rank));
    throw_error(e.code(), std::move(info));
  }
}

std::vector<int> ranks_from(Collective const& group, int first) {
  auto const all = group.ranks();
  std::vector<int> ranks;
  for (std::size_t i = 0; i < all.size(); ++i) ranks.push_back(all[(as_size(first) + i) % all.size()]);
  return ranks;
}

void gather_everything(Collective const& group, int receiver, int seed, std::filesystem::path const& directory) {
  note_progress();
  auto const ranks = ranks_from(group, receiver);
  int const self = group.global_rank();
  {
    come_late(!directory.empty() && group.rank() == receiver);
    auto tensors = get_tensors_parallel(sample_tensor(self, seed), ranks, group);
    for (std::size_t i = 0; i < tensors.size(); ++i) require_sample(tensors[i], ranks[i], seed);
    tensors.close();
  }
  {
    auto const mine = sample_state_of(self, seed).weights;
    auto dicts = get_tensors_parallel(mine, ranks, group);
    for (std::size_t i = 0; i < dicts.size(); ++i) require_sample(dicts[i].at("b"), ranks[i], seed + 1, large);
  }
  gather_configs(group, ranks, seed + 2, {});
  if (!directory.empty()) gather_configs(group, ranks, seed + 3, {.workspace_path = directory});
}

void use_everything(Collective world, std::filesystem::path const& directory) {
  world.barrier();
  for (int receiver = 0; receiver < world.world_size(); ++receiver)
    gather_everything(world, receiver, 10 * receiver, directory);
  share_states(world);
  pass_messages(world, 50);
  for (int writer = 0; writer < world.world_size(); ++writer) pass_through_queue(world, writer);
  // Each rank is the first of a list once, and so creates a group once.
  for (int first = 0; first < world.world_size(); ++first) {
    int const second = (first + 1) % world.world_size();
    auto pair = world.split({{first, second}});
    if (!pair.connected()) continue;
    in_group(pair, [&] {
      gather_everything(pair, 1, 60 + first);
      pair.close();
    });
  }
  world.close();
}

}  // namespace crossrank::test
