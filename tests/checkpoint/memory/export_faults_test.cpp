// A rank is killed at every step of an export, of `get_full_state_dict` or of `reshard`, or the caller stops the
// export. The output then has the old checkpoint or the new one, every rank gets a typed error, and nothing is left
// behind.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <ostream>
#include <random>
#include <stop_token>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/safetensors.hpp>

#include "crash_points.generated.hpp"
#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/checkpoint/memory/sharded_model.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/no_threads.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::export_faults_test {
namespace {

namespace fs = std::filesystem;
using test::names_in;
using test::read_checkpoint;
using testing::Each;
using testing::Not;
using testing::StartsWith;

constexpr int ranks = 3;
constexpr int lost_a_peer = 7;
constexpr auto call_timeout = std::chrono::seconds(20);

/// Four tensors, sharded in several ways.
test::ShardedModel sample_model() {
  std::mt19937 random(5);
  test::ShardedModel model;
  model["a"] = {test::random_tensor(random, {7, 16}, Dtype::f32), {.placements = {checkpoint::Shard{0}}}};
  model["b"] = {test::random_tensor(random, {4, 9}, Dtype::bf16), {.placements = {checkpoint::Shard{1}}}};
  model["c"] = {test::random_tensor(random, {30}, Dtype::u8), {}};
  model["d"] = {test::random_tensor(random, {}, Dtype::f32), {}};
  return model;
}

checkpoint::ExportOptions sample_options() {
  return {.model = {.config = {{"num_hidden_layers", 4}}}, .max_shard_bytes = 200, .force = true};
}

/// The same tensors, sharded in other ways.
test::ShardedModel resharded_model() {
  auto model = sample_model();
  model["a"].placement = {.placements = {checkpoint::Shard{1}}};
  model["b"].placement = {.placements = {checkpoint::Shard{0}}};
  model["c"].placement = {.placements = {checkpoint::Shard{0}}};
  return model;
}

/// Receives the model of `get_full_state_dict`.
constexpr int receiving_rank = 1;

/// Runs one call for the sample model, and expects its result.
void run_call(Collective const& world, std::string const& call, fs::path const& out) {
  auto const part = test::part_of(sample_model(), world.rank(), world.world_size());
  if (call.starts_with("consolidate")) {
    auto options = sample_options();
    if (call == "consolidate_to_torch") options.format = checkpoint::OutputFormat::torch;
    (void)checkpoint::consolidate(world, part.weights, part.placements, out, options);
  } else if (call == "get_full_state_dict") {
    auto const full = checkpoint::get_full_state_dict(world, part.weights, part.placements, {.dst = receiving_rank});
    EXPECT_EQ(test::bytes_of(full),
              world.rank() == receiving_rank ? test::bytes_of(sample_model()) : test::ModelBytes());
  } else if (call == "reshard") {
    auto const wanted = test::part_of(resharded_model(), world.rank(), world.world_size());
    auto const resharded = checkpoint::reshard(world, part.weights, part.placements, wanted.placements);
    EXPECT_EQ(test::bytes_of(resharded), test::bytes_of(wanted.weights));
  } else {
    auto request = checkpoint::iconsolidate(world, part.weights, part.placements, out, {.write = sample_options()});
    if (call == "iconsolidate_beside_other_calls") {
      // An error of these calls drops the request while its thread still runs.
      for (int i = 0; i < 100; ++i) world.barrier();
    }
    (void)request.wait();
  }
}

/// Runs the call `arguments[4]`; rank `arguments[1]` is killed at a visit of a crash point. The others return 7 after
/// an error that names this rank and no other one.
CROSSRANK_RANK_SCENARIO(export_until) {
  auto const world = connect({.timeout = call_timeout});
  int const victim = std::stoi(self.arguments.at(1));
  world.barrier();
  if (world.rank() == victim) platform::arm_crash_point(self.arguments.at(2), std::stoi(self.arguments.at(3)));
  try {
    run_call(world, self.arguments.at(4), self.arguments.at(0));
  } catch (PeerLostError const& error) {
    EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(victim)) << error.report();
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
    auto found = read_checkpoint(out(), true);
    if (found.empty() && fs::exists(out() / "pytorch_model.bin.index.json")) found = test::read_any_checkpoint(out());
    if (found.empty()) return "none";
    if (found == test::bytes_of(sample_model())) return "new";
    return found == test::bytes_of(test::sample_weights(2, 8, 8, 2)) ? "old" : "a mixture";
  }

  test::TemporaryDirectory folder_{};
};

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

TEST_F(Export, in_the_background_stops_on_all_ranks_when_one_drops_its_request) {
  test::run_thread_ranks(ranks, [&](Collective const& world) {
    auto const part = test::part_of(sample_model(), world.rank(), ranks);
    std::promise<void> dropping;
    auto options = sample_options();
    // The export of rank 0 cannot end before the request is dropped.
    options.on_progress = [wait = dropping.get_future().share()](auto const&) { wait.wait(); };
    auto request = checkpoint::iconsolidate(world, part.weights, part.placements, out(), {.write = options});
    if (world.rank() == 0) {
      EXPECT_FALSE(request.done());
      dropping.set_value();
      request = {};
    } else {
      try {
        (void)request.wait();
        EXPECT_EQ(state(), "new");
      } catch (CancelledError const&) {
        EXPECT_EQ(state(), "old");
      }
    }
    world.barrier();
  });
  EXPECT_THAT(state(), testing::AnyOf("old", "new"));
  EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
}

/// Exports in the background to `arguments[0]`. Rank 1 cannot start a thread. Returns 0 after the expected error.
CROSSRANK_RANK_SCENARIO(export_without_threads) {
  auto const world = connect({.timeout = call_timeout});
  auto const part = test::part_of(sample_model(), world.rank(), world.world_size());
  world.barrier();
  std::optional<test::NoThreads> none;
  if (world.rank() == 1 && !none.emplace().refused()) return 1;
  try {
    (void)checkpoint::iconsolidate(world, part.weights, part.placements, self.arguments.at(0),
                                   {.write = sample_options(), .max_copy_bytes = 1'000'000});
  } catch (UnavailableError const& error) {
    EXPECT_THAT(error.info().hint, testing::HasSubstr("ulimit -u"));
    EXPECT_NE(error.info().system_errno, 0);
    world.barrier();
    return 0;
  }
  return 2;
}

TEST_F(Export, in_the_background_is_refused_on_all_ranks_when_one_cannot_start_a_thread) {
  auto const outcome = test::run_ranks(ranks, "export_without_threads", {.arguments = {out()}});
  EXPECT_TRUE(outcome.ok()) << outcome.text();
  EXPECT_EQ(state(), "old");
  EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
}

/// A call and the step at which a rank is killed.
struct KilledCall {
  std::string call{};
  std::string point{};
};

/// Shown in the list of tests.
void PrintTo(KilledCall const& killed, std::ostream* out) { *out << killed.call << " at " << killed.point; }

std::string name_of_call(testing::TestParamInfo<KilledCall> const& tested) {
  auto name = tested.param.call + "_" + tested.param.point;
  for (auto& c : name) c = c == '.' ? '_' : c;
  return name;
}

/// Starts the ranks; `victim` is killed at a visit of a crash point. -1: no rank.
test::JobOutcome run_killed(KilledCall const& killed, fs::path const& out, int victim, int visit = 1) {
  return test::run_ranks(
      ranks, "export_until",
      {.arguments = {out, std::to_string(victim), killed.point, std::to_string(visit), killed.call}});
}

/// Expects that each other rank got the error in time, or finished if it `may_finish`.
void expect_survivors(test::JobOutcome const& outcome, int victim, bool may_finish) {
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_THAT(outcome.leaks, testing::IsEmpty());
  for (int rank = 0; rank < ranks; ++rank) {
    auto const& one = outcome.ranks.at(as_size(rank));
    if (rank == victim) continue;
    EXPECT_TRUE(one.exit_code == lost_a_peer || (may_finish && one.exit_code == 0)) << outcome.text();
    EXPECT_LT(one.elapsed, call_timeout);
  }
}

class KilledExport : public Export, public testing::WithParamInterface<KilledCall> {};

TEST_P(KilledExport, leaves_the_old_or_the_new_checkpoint_and_an_error_on_all_other_ranks) {
  auto const& point = GetParam().point;
  for (int const victim : {0, 1}) {
    if (victim != 0 && (point.starts_with("checkpoint.commit") || point.starts_with("checkpoint.job"))) continue;
    for (int visit = 1;; ++visit) {
      SCOPED_TRACE("rank " + std::to_string(victim) + ", visit " + std::to_string(visit));
      put_old();

      auto const outcome = run_killed(GetParam(), out(), victim, visit);

      if (outcome.ranks.at(as_size(victim)).signal != SIGKILL) {
        EXPECT_TRUE(visit > 1 && outcome.ok()) << outcome.text();
        break;
      }
      auto const found = state();
      EXPECT_TRUE(found == "old" || found == "none" || found == "new") << found;
      bool const before_commit = !point.starts_with("checkpoint.commit") && point != "export.background.ended";
      if (before_commit) {
        EXPECT_EQ(found, "old");
      }
      // The others may have finished before they noticed.
      expect_survivors(outcome, victim, found != "old");

      EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
      auto const again = run_killed(GetParam(), out(), -1);

      EXPECT_TRUE(again.ok()) << again.text();
      EXPECT_EQ(state(), "new");
      EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
      EXPECT_THAT(names_in(folder_.path()), testing::ElementsAre("out"));
      if (HasFailure()) return;
    }
  }
}

TEST_F(Export, of_which_rank_0_is_killed_takes_the_output_that_it_made_with_it) {
  fs::remove_all(out());
  auto const outcome = run_killed({"consolidate", "checkpoint.slice.written"}, out(), 0);
  expect_survivors(outcome, 0, false);
  EXPECT_FALSE(fs::exists(out()));
}

/// Returns whether a call reaches the point.
bool reaches(std::string_view call, std::string_view point) {
  bool const seals = point == "checkpoint.file.sealed";  // only archives have a seal
  if (seals || call == "consolidate_to_torch") return seals && call == "consolidate_to_torch";
  bool const fills = call == "get_full_state_dict" || call == "reshard";
  if (point.starts_with("export.background.")) return call.starts_with("iconsolidate");
  if (point.starts_with("export.fill.")) return fills;
  if (point.starts_with("export.reshard.")) return call == "reshard";
  if (point.starts_with("checkpoint.") || point == "export.planned") return !fills;
  return point.starts_with("export.");
}

std::vector<KilledCall> calls_killed(std::vector<std::string> const& calls) {
  std::vector<KilledCall> killed;
  for (auto const& call : calls) {
    for (auto const point : test::crash_points) {
      if (reaches(call, point)) killed.push_back({call, std::string(point)});
    }
  }
  return killed;
}

INSTANTIATE_TEST_SUITE_P(All, KilledExport,
                         testing::ValuesIn(calls_killed({"consolidate", "consolidate_to_torch", "iconsolidate",
                                                         "iconsolidate_beside_other_calls"})),
                         name_of_call);

class KilledFill : public testing::TestWithParam<KilledCall> {};

TEST_P(KilledFill, ends_with_an_error_on_all_other_ranks) {
  auto const& point = GetParam().point;
  test::TemporaryDirectory const folder;
  for (int const victim : {0, receiving_rank}) {
    if (point == "export.unit.read" && GetParam().call != "reshard" && victim != receiving_rank) continue;
    SCOPED_TRACE("rank " + std::to_string(victim));

    auto const outcome = run_killed(GetParam(), folder.path(), victim);

    ASSERT_EQ(outcome.ranks.at(as_size(victim)).signal, SIGKILL) << outcome.text();
    expect_survivors(outcome, victim, point == "export.fill.received");
    EXPECT_THAT(names_in(folder.path()), testing::IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(All, KilledFill, testing::ValuesIn(calls_killed({"get_full_state_dict", "reshard"})),
                         name_of_call);

/// A rank is killed before each collective call of an operation.
class KilledBeforeEachCall : public Export, public testing::WithParamInterface<std::string_view> {};

TEST_P(KilledBeforeEachCall, gives_all_other_ranks_an_error) {
  KilledCall const killed{std::string(GetParam()), "node.group.arriving"};
  int kills = 0;
  for (int visit = 1;; ++visit) {
    SCOPED_TRACE("call " + std::to_string(visit));
    put_old();
    auto const outcome = run_killed(killed, out(), 2, visit);
    if (outcome.ranks.at(2).signal == 0) {
      EXPECT_TRUE(outcome.ok()) << outcome.text();
      break;
    }
    ++kills;
    auto const found = state();
    EXPECT_TRUE(found == "old" || found == "none" || found == "new") << found;
    // After its last data the killed rank only ends the group.
    bool const writes = killed.call.ends_with("consolidate");
    expect_survivors(outcome, 2, !writes || found != "old");
    EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
    if (HasFailure()) break;
  }
  EXPECT_GE(kills, 5);
}

INSTANTIATE_TEST_SUITE_P(All, KilledBeforeEachCall,
                         testing::Values("consolidate", "iconsolidate", "get_full_state_dict", "reshard"),
                         [](auto const& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace crossrank::export_faults_test
