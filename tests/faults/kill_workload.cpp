#include "tests/faults/kill_workload.hpp"

#include <chrono>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/workspace/nfs_workspace.hpp>
#include <crossrank/workspace/shared_memory_workspace.hpp>

#include "lib/core/as_size.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"

namespace crossrank::test {
namespace {

constexpr int messages = 12;
constexpr auto long_wait = std::chrono::minutes(5);

/// Some messages are longer than a chunk.
std::int64_t length_of(int message) { return message % 5 == 2 ? 5000 : 100; }

void pass(MessageQueue const& queue, int writer, int message) {
  note_progress();
  if (queue.is_writer()) {
    queue.enqueue_tensor(sample_tensor(writer, message, length_of(message)));
  } else {
    auto const tensor = queue.dequeue_tensor();
    if (!tensor) throw std::runtime_error("wrong data: the queue ended early");
    require_sample(*tensor, writer, message, length_of(message));
  }
}

/// Writes a queue and closes it. The writer waits for the readers, or drops its handle at once.
void stream(Collective const& group, int writer, bool waits, Fuse& fuse) {
  auto const queue = MessageQueue::create(group, {.writer_rank = writer, .chunk_bytes = 1024, .chunks = 3});
  for (int message = 0; message < messages; ++message) {
    if (message == 5) fuse.step();
    pass(queue, writer, message);
  }
  fuse.step();
  if (!queue.is_writer() && queue.dequeue_tensor()) throw std::runtime_error("wrong data: more than was written");
  if (!queue.is_writer()) return;
  queue.close();
  if (waits && !queue.wait_for(long_wait)) throw std::runtime_error("wrong data: not all was read");
}

/// Writes a queue that one reader reads to the end. The other readers close earlier.
void desert(Collective const& group, int writer, Fuse& fuse) {
  auto const queue = MessageQueue::create(group, {.writer_rank = writer, .chunk_bytes = 1024, .chunks = 2});
  int const loyal = (writer + 1) % group.world_size();
  for (int message = 0; message < messages; ++message) {
    if (!queue.is_writer() && group.rank() != loyal && message == 4) break;
    pass(queue, writer, message);
  }
  fuse.step();
  queue.close();
}

/// Passes messages along a row: each rank reads from the one before it and writes to the next.
void pass_in_a_row(Collective const& world, Fuse& fuse) {
  bool const is_last = world.rank() + 1 == world.world_size();
  auto const to = is_last ? MessageQueue() : MessageQueue::create_writer(world, 1, {.chunk_bytes = 1024, .chunks = 2});
  auto const handles = world.all_gatherv(is_last ? std::vector<std::byte>{} : to.handle());
  MessageQueue from;
  std::exception_ptr lost;
  try {
    if (world.rank() > 0) from = MessageQueue::attach(handles.at(as_size(world.rank()) - 1), 0);
  } catch (PeerLostError const&) {
    lost = std::current_exception();
  }
  world.barrier();  // a writer's handle stays until its reader has attached
  if (lost) std::rethrow_exception(lost);
  for (int message = 0; message < messages; ++message) {
    if (message == 5) fuse.step();
    if (from.connected()) pass(from, world.rank() - 1, message);
    if (to.connected()) pass(to, world.rank(), message);
  }
  if (to.connected()) to.close();
  fuse.step();
}

RankState state_of(int rank, int seed) {
  RankState state{.config = {{"rank", rank}, {"seed", seed}}};
  state.weights.insert_or_assign("a", sample_tensor(rank, seed));
  return state;
}

template <class Workspace>
void read_all(Workspace const& workspace, Collective const& world, int seed, Fuse& fuse) {
  for (int rank = 0; rank < world.world_size(); ++rank) {
    fuse.step();
    auto const state = workspace.read_configs_and_weights_from_rank(rank);
    if (!state) throw std::runtime_error("wrong data: no state of rank " + std::to_string(rank) + ", which wrote one");
    if (state->config != state_of(rank, seed).config)
      throw std::runtime_error("wrong data: config " + state->config.dump() + " of rank " + std::to_string(rank));
    require_sample(state->weights.at("a"), rank, seed);
  }
}

template <class Workspace>
void write(Workspace& workspace, Collective const& world, int seed) {
  auto const mine = state_of(world.rank(), seed);
  workspace.write_configs_and_weights(mine.config, mine.weights);
}

}  // namespace

void gather_for_ever(Collective const& world, Fuse& fuse) {
  for (int round = 0;; ++round) {
    fuse.step();
    world.barrier();
    fuse.step();
    gather_everything(world, round % world.world_size(), round);
    fuse.step();
    auto half = world.split({{0, 1}, {3, 2}});
    fuse.step();
    in_group(half, [&] {
      gather_everything(half, round % 2, round);
      fuse.step();
      half.close();
    });
  }
}

void queue_for_ever(Collective const& world, Fuse& fuse) {
  for (int round = 0;; ++round) {
    int const writer = round % world.world_size();
    fuse.step();
    stream(world, writer, round % 2 == 0, fuse);
    desert(world, writer, fuse);
    pass_in_a_row(world, fuse);
    auto half = world.split({{0, 1}, {3, 2}});
    in_group(half, [&] {
      stream(half, round % 2, true, fuse);
      half.close();
    });
  }
}

void write_files_for_ever(Collective const& world, Fuse& fuse, std::filesystem::path const& directory) {
  NFSWorkspace workspace(directory / "kept");
  for (int round = 0;; ++round) {
    fuse.step();
    gather_everything(world, round % world.world_size(), round, directory / "gathered");
    fuse.step();
    write(workspace, world, round);
    world.barrier();
    read_all(workspace, world, round, fuse);
    world.barrier();
  }
}

void leave_in_order(Collective world, Fuse& fuse, unsigned seed) {
  std::mt19937 random(seed + static_cast<unsigned>(world.rank()));
  auto const at_random = [&](int max) { return std::uniform_int_distribution(0, max)(random); };
  int const writer = static_cast<int>(seed % static_cast<unsigned>(world.world_size()));
  SharedMemoryWorkspace workspace(world);
  fuse.step();
  write(workspace, world, 7);
  auto queue = MessageQueue::create(world, {.writer_rank = writer, .chunk_bytes = 1024, .chunks = messages});
  for (int message = 0; queue.is_writer() && message < messages; ++message) pass(queue, writer, message);
  fuse.step();
  if (queue.is_writer()) queue.close();
  world.barrier();
  fuse.step();
  if (at_random(1) == 0) std::this_thread::sleep_for(std::chrono::microseconds(at_random(3000)));
  if (queue.is_writer()) queue = {};
  if (at_random(1) == 0) read_all(workspace, world, 7, fuse);
  fuse.step();
  if (at_random(1) == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(at_random(3000)));
    read_all(workspace, world, 7, fuse);
  }
  for (int message = 0; queue.connected() && message < messages; ++message) pass(queue, writer, message);
  if (queue.connected() && at_random(1) == 0) queue.close();
  fuse.step();
}

}  // namespace crossrank::test
