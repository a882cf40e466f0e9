// Weights in the memory of ranks on two hosts become one checkpoint. Run by mpirun.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/core/as_size.hpp"
#include "tests/checkpoint/memory/sharded_model.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"

namespace crossrank::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::consolidate;

/// The folder that the script made for this job.
fs::path folder() { return std::getenv("CROSSRANK_TEST_FOLDER"); }

TEST(MpiExport, gives_the_whole_model_on_any_number_of_hosts) {
  auto world = connect({.backend = "composite"});
  ASSERT_EQ(world.backend(), "composite");
  int max_files = 0;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto const model = random_model(seed, world.world_size());
    auto const part = part_of(model, world.rank(), world.world_size());
    auto const out = folder() / ("out" + std::to_string(seed));

    auto const summary = consolidate(world, part.weights, part.placements, out, {.max_shard_bytes = 400});
    auto const full = checkpoint::get_full_state_dict(world, part.weights, part.placements,
                                                      {.dst = static_cast<int>(seed) % world.world_size()});

    max_files = std::max(max_files, summary.files);
    EXPECT_EQ(difference(bytes_of(model), read_checkpoint(out, false)), "");
    if (world.rank() == static_cast<int>(seed) % world.world_size()) {
      EXPECT_EQ(difference(bytes_of(model), bytes_of(full)), "");
    } else {
      EXPECT_TRUE(full.empty());
    }
  }
  EXPECT_GT(max_files, 1);
  world.close();
}

/// A row in each of many rounds comes from another host.
TEST(MpiExport, sends_large_tensors_in_bounded_rounds) {
  auto world = connect({.backend = "composite"});
  constexpr std::int64_t rows = 1024;
  constexpr std::int64_t columns = 40 * 1024;
  auto own = Tensor::empty({rows, columns}, Dtype::u8);
  auto const bytes = own.mutable_bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i % 251) + as_size(world.rank()));
  StateDict const weights{{"w", own}};

  (void)consolidate(world, weights, {.otherwise = {.placements = {checkpoint::Shard{1}}}}, folder() / "large");

  SafetensorsFile const file(folder() / "large" / "model.safetensors");
  auto const mine = file.read_slice("w", Dim{1}, world.rank() * columns, columns);
  EXPECT_TRUE(std::ranges::equal(mine.bytes(), own.bytes()));
  world.close();
}

/// The last rank dies where the others expect its weights.
TEST(MpiExport, of_which_a_rank_dies_fails_on_all_others_and_keeps_the_old_checkpoint) {
  auto world = connect({.backend = "composite", .timeout = std::chrono::seconds(6)});
  auto const doomed = world.world_size() - 1;
  auto const out = folder() / "old";
  auto const old = Tensor::of<float>({1, 2, 3}, {3});
  if (world.rank() == 0) {
    fs::create_directories(out);
    save_safetensors(out / "model.safetensors", {{"old", old}});
  }
  auto const part = part_of(random_model(9, world.world_size()), world.rank(), world.world_size());
  world.barrier();
  if (world.rank() == doomed) ::raise(SIGKILL);
  try {
    (void)consolidate(world, part.weights, part.placements, out, {.force = true});
    ADD_FAILURE() << "the export without a rank succeeded";
  } catch (Error const& error) {
    EXPECT_TRUE(error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::timeout) << error.what();
    EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(doomed)) << error.report();
    EXPECT_EQ(difference(bytes_of(StateDict{{"old", old}}), read_checkpoint(out, false)), "");
    std::ofstream(folder() / std::to_string(world.rank())) << error.info().message << "\n0 ms\n" << error.report();
  }
}

/// The last rank of the job dies in the middle of an export by `group`, whose ranks are those of the job in any order.
/// All others get an error that names it, and the old checkpoint stays.
void die_in_the_middle(Collective const& world, Collective const& group, int doomed) {
  auto const out = folder() / "old";
  auto const old = Tensor::of<float>({1, 2, 3}, {3});
  if (world.rank() == 0) {
    fs::create_directories(out);
    save_safetensors(out / "model.safetensors", {{"old", old}});
  }
  std::array<std::int64_t, 1> pid{::getpid()};
  group.broadcast(std::span<std::int64_t>(pid), {.root = doomed});
  auto const weights = StateDict{{"w", Tensor::zeros({1 << 10, 40 << 10}, Dtype::u8)}};
  checkpoint::ExportOptions options{.force = true};
  options.on_progress = [&](checkpoint::Progress const& progress) {
    if (progress.bytes_done == 0) return;
    EXPECT_LT(progress.bytes_done, progress.bytes_total);
    ::kill(static_cast<pid_t>(pid[0]), SIGKILL);
  };
  try {
    (void)consolidate(group, weights, {.otherwise = {.placements = {checkpoint::Shard{1}}}}, out, options);
    ADD_FAILURE() << "the export without a rank succeeded";
  } catch (Error const& error) {
    EXPECT_TRUE(error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::timeout) << error.what();
    EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(doomed)) << error.report();
    EXPECT_EQ(difference(bytes_of(StateDict{{"old", old}}), read_checkpoint(out, false)), "");
    if (group.rank() == 0 || (doomed == 0 && group.local_world_size() > 1 && group.rank() == 1)) {
      EXPECT_THAT(names_in(out), testing::ElementsAre("model.safetensors"));
    }
    std::ofstream(folder() / std::to_string(world.rank())) << error.info().message << "\n0 ms\n" << error.report();
  }
}

TEST(MpiExport, fails_on_all_ranks_when_the_last_one_is_killed_in_the_middle) {
  auto world = connect({.backend = "composite", .timeout = std::chrono::seconds(6)});
  die_in_the_middle(world, world, world.world_size() - 1);
}

TEST(MpiExport, fails_on_all_ranks_when_its_first_one_is_killed_in_the_middle) {
  auto world = connect({.backend = "composite", .timeout = std::chrono::seconds(6)});
  std::vector<int> backward;
  for (int rank = world.world_size(); rank-- > 0;) backward.push_back(rank);
  die_in_the_middle(world, world.split({backward}, "backward"), 0);
}

}  // namespace
}  // namespace crossrank::test
