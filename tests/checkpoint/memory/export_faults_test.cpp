// A rank is killed at every step of an export, the disk is full, or the caller stops it. The output then has the old
// checkpoint or the new one, every rank gets a typed error, and nothing is left behind.
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/safetensors.hpp>

#include "crash_points.generated.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/checkpoint/memory/cut_model.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::names_in;
using test::read_checkpoint;
using testing::Each;
using testing::Not;
using testing::StartsWith;

constexpr int ranks = 3;
constexpr int lost_a_peer = 7;

/// Four tensors, cut in several ways.
test::CutModel sample_model() {
  std::mt19937 random(5);
  test::CutModel model;
  model["a"] = {test::random_tensor(random, {7, 16}, Dtype::f32), {.placements = {checkpoint::Shard{0}}}};
  model["b"] = {test::random_tensor(random, {4, 9}, Dtype::bf16), {.placements = {checkpoint::Shard{1}}}};
  model["c"] = {test::random_tensor(random, {30}, Dtype::u8), {}};
  model["d"] = {test::random_tensor(random, {}, Dtype::f32), {}};
  return model;
}

checkpoint::ExportOptions sample_options() {
  return {.model = {.config = {{"num_hidden_layers", 4}}}, .max_shard_bytes = 200, .force = true};
}

/// Exports; rank `arguments[1]` is killed at a visit of a crash point. The others return 7 after an error that names a
/// lost peer.
CROSSRANK_RANK_SCENARIO(export_until) {
  auto const world = connect({.timeout = std::chrono::seconds(20)});
  auto const part = test::part_of(sample_model(), world.rank(), world.world_size());
  world.barrier();
  if (world.rank() == std::stoi(self.arguments.at(1)))
    platform::arm_crash_point(self.arguments.at(2), std::stoi(self.arguments.at(3)));
  try {
    (void)checkpoint::consolidate(world, part.weights, part.placements, self.arguments.at(0), sample_options());
  } catch (PeerLostError const& error) {
    bool const names_an_option_of_another_call = error.info().hint.find("resume") != std::string::npos;
    return names_an_option_of_another_call ? 8 : lost_a_peer;
  }
  return 0;
}

class Export : public testing::Test {
 protected:
  Export() { put_old(); }

  void put_old() const {
    fs::remove_all(out());
    fs::create_directories(out());
    save_safetensors(out() / "model.safetensors", test::sample_weights(2, 8, 8, 2));
    std::ofstream(out() / "config.json") << "{}";
  }
  [[nodiscard]] fs::path out() const { return folder_.path() / "out"; }
  /// Returns which checkpoint the output has: "old", "new", "none" or "a mixture".
  [[nodiscard]] std::string state() const {
    auto const found = read_checkpoint(out(), true);
    if (found.empty()) return "none";
    if (found == test::bytes_of(sample_model())) return "new";
    return found == test::bytes_of(test::sample_weights(2, 8, 8, 2)) ? "old" : "a mixture";
  }

  test::TemporaryDirectory folder_{};
};

TEST_F(Export, fails_on_all_ranks_and_keeps_the_old_checkpoint_when_the_disk_is_full) {
  for (auto const call : {test::Call::pwrite, test::Call::fsync}) {
    test::FaultySystem os;
    os.fail_always(call, ENOSPC);
    test::run_thread_ranks(ranks, [&](Collective const& world) {
      auto const part = test::part_of(sample_model(), world.rank(), ranks);
      std::optional<platform::ScopedSystem> scope;
      if (world.rank() == 0) scope.emplace(os);
      world.barrier();
      EXPECT_THROW((void)checkpoint::consolidate(world, part.weights, part.placements, out(), sample_options()),
                   IoError);
      world.barrier();
    });
    EXPECT_EQ(state(), "old");
    EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
  }
}

TEST_F(Export, stops_on_all_ranks_when_one_asks_for_it) {
  std::stop_source stop;
  stop.request_stop();
  test::run_thread_ranks(ranks, [&](Collective const& world) {
    auto const part = test::part_of(sample_model(), world.rank(), ranks);
    auto options = sample_options();
    if (world.rank() == 1) options.stop = stop.get_token();
    EXPECT_THROW((void)checkpoint::consolidate(world, part.weights, part.placements, out(), options), CancelledError);
  });
  EXPECT_EQ(state(), "old");
  EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
}

class KilledExport : public Export, public testing::WithParamInterface<std::string_view> {};

TEST_P(KilledExport, leaves_the_old_or_the_new_checkpoint_and_an_error_on_all_other_ranks) {
  std::string const point(GetParam());
  for (int const victim : {0, 1}) {
    if (victim != 0 && (point.starts_with("checkpoint.commit") || point.starts_with("checkpoint.job"))) continue;
    SCOPED_TRACE("rank " + std::to_string(victim));
    put_old();

    auto const outcome =
        test::run_ranks(ranks, "export_until", {.arguments = {out(), std::to_string(victim), point, "1"}});

    ASSERT_EQ(outcome.ranks.at(static_cast<std::size_t>(victim)).signal, SIGKILL) << outcome.text();
    EXPECT_FALSE(outcome.timed_out);
    EXPECT_THAT(outcome.leaks, testing::IsEmpty());
    auto const found = state();
    EXPECT_TRUE(found == "old" || found == "none" || found == "new") << found;
    if (!point.starts_with("checkpoint.commit")) {
      EXPECT_EQ(found, "old");
    }
    for (int rank = 0; rank < ranks; ++rank) {
      auto const& one = outcome.ranks.at(static_cast<std::size_t>(rank));
      // The others may have finished before they noticed.
      if (rank == victim) continue;
      EXPECT_TRUE(one.exit_code == lost_a_peer || (found != "old" && one.exit_code == 0)) << outcome.text();
    }

    // Without rank 0 the next export cleans up after the killed one.
    if (victim != 0) {
      EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
    }
    auto const again = test::run_ranks(ranks, "export_until", {.arguments = {out(), "-1", point, "1"}});

    EXPECT_TRUE(again.ok()) << again.text();
    EXPECT_EQ(state(), "new");
    EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
  }
}

std::vector<std::string_view> points_of_an_export() {
  std::vector<std::string_view> points;
  for (auto const point : test::crash_points) {
    // Only archives have a seal.
    if (point == "checkpoint.file.sealed") continue;
    if (point.starts_with("export.") || point.starts_with("checkpoint.")) points.push_back(point);
  }
  return points;
}

INSTANTIATE_TEST_SUITE_P(All, KilledExport, testing::ValuesIn(points_of_an_export()), [](auto const& tested) {
  std::string name(tested.param);
  for (auto& c : name) c = c == '.' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace crossrank
