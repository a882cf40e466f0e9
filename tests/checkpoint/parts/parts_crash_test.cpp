// Parts, and the commit of their result, are killed or their file system fails at every step. The output then has
// the old checkpoint, none, or the new one, and running everything again completes it.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "crash_points.generated.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/checkpoint/parts/planned_parts.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/process_ranks.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using checkpoint::consolidate_part;
using checkpoint::finish_parts;
using checkpoint::PartsPlan;
using test::Call;
using test::Fault;
using test::names_in;
using testing::Each;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

/// Arguments: the step, the inputs, the output, the plan file, the crash point, its visit, and the file format.
CROSSRANK_RANK_SCENARIO(parts_until) {
  auto const& step = self.arguments.at(0);
  auto const arm = [&] { platform::arm_crash_point(self.arguments.at(4), std::stoi(self.arguments.at(5))); };
  if (step == "plan") {
    auto const world = connect({.backend = "fake"});
    auto const merge = checkpoint::MergePlan::make(world, self.arguments.at(1));
    auto const plan = PartsPlan::make(
        merge, self.arguments.at(2),
        {.parts = 3, .max_shard_bytes = 1100, .format = test::options_for(self.arguments.at(6)).format, .force = true});
    arm();
    plan.save(self.arguments.at(3));
    return 0;
  }
  auto const plan = PartsPlan::load(self.arguments.at(3));
  arm();
  if (step == "part") {
    (void)consolidate_part(plan, 0);
  } else {
    (void)finish_parts(plan);
  }
  return 0;
}

class KilledParts : public test::PlannedParts, public testing::WithParamInterface<std::string_view> {
 protected:
  /// Only archives have a seal.
  static char const* format() { return GetParam() == "checkpoint.file.sealed" ? "torch" : "safetensors"; }
  static checkpoint::OutputFormat output_format() { return test::options_for(format()).format; }

  /// Runs a step in another process that is killed at the point. Returns whether it was.
  [[nodiscard]] bool kill_in(std::string const& step, int visit) const {
    auto const outcome = test::run_ranks(
        1, "parts_until",
        {.arguments = {step, in(), out(), plan_file(), std::string(GetParam()), std::to_string(visit), format()}});
    bool const killed = outcome.ranks.at(0).signal == SIGKILL;
    EXPECT_TRUE(killed || outcome.ok()) << outcome.text();
    return killed;
  }

  void complete() {
    auto const loaded = load_plan();
    for (int part = 0; part < parts; ++part) (void)consolidate_part(loaded, part);
    (void)finish_parts(loaded);
    auto const plain = folder_.path() / "plain";
    if (!fs::exists(plain)) (void)checkpoint::consolidate(world_, plan(), plain, test::options_for(format()));
    EXPECT_EQ(bytes_of(out()), bytes_of(plain));
  }
};

TEST_P(KilledParts, end_in_the_new_checkpoint_when_everything_is_run_again) {
  int killed = 0;
  for (std::string const step : {"plan", "part", "finish"}) {
    for (int visit = 1;; ++visit) {
      put_old();
      if (step == "part") save_plan(parts, true, output_format());
      if (step == "finish") (void)run_all_parts(parts, output_format());
      if (!kill_in(step, visit)) break;
      ++killed;
      auto const found = state();
      EXPECT_TRUE(found == "old" || (step == "finish" && (found == "none" || found == "new"))) << step << ": " << found;
      if (step == "plan") {
        save_plan(parts, true, output_format());
        EXPECT_THAT(names_in(plan_file().parent_path()), Each(Not(StartsWith(".")))) << "visit " << visit;
      }
      complete();
      if (HasFailure()) FAIL() << step << ", visit " << visit;
    }
  }
  EXPECT_GT(killed, 0) << "the point was not reached";
}

std::vector<std::string_view> points() {
  std::vector<std::string_view> all;
  for (auto const point : test::crash_points) {
    if (point == "checkpoint.job.marked") continue;  // parts record their files with "parts.recorded"
    if (point.starts_with("checkpoint.") || point.starts_with("parts.") || point.starts_with("platform.atomic_file."))
      all.push_back(point);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, KilledParts, testing::ValuesIn(points()), [](auto const& tested) {
  std::string name(tested.param);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

class FailingParts : public test::PlannedParts, public testing::WithParamInterface<Fault> {
 protected:
  /// Runs `step` with each use of the call failing in turn.
  template <class Prepare, class Step>
  void fail_each(Prepare const& prepare, Step const& step) {
    int uses = 0;
    for (int nth = 1; nth == 1 || nth <= uses; ++nth) {
      put_old();
      prepare();
      auto const loaded = load_plan();
      test::FaultySystem os;
      os.fail(GetParam().call, nth, GetParam().error);
      bool failed = false;
      {
        platform::ScopedSystem const scope(os);
        try {
          step(loaded);
        } catch (Error const& error) {
          failed = true;
          EXPECT_FALSE(error.info().message.empty() && error.info().system.empty()) << error.what();
        }
      }
      uses = os.uses(GetParam().call);
      auto const found = state();
      EXPECT_TRUE(found == "old" || (found == "new" && !failed)) << found << " at use " << nth << " of " << uses;
      for (int part = 0; part < parts; ++part) (void)consolidate_part(loaded, part);
      (void)finish_parts(loaded);
      EXPECT_EQ(state(), "new") << "at use " << nth << " of " << uses;
      EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
      if (HasFailure()) return;
      // Uses in the middle of a step behave alike.
      if (nth == 8 && uses > 16) nth = uses - 8;
    }
  }
};

TEST_P(FailingParts, fail_and_can_run_again) {
  fail_each([&] { save_plan(); }, [](PartsPlan const& plan) { (void)consolidate_part(plan, 0, {.threads = 1}); });
}

TEST_P(FailingParts, are_not_published_or_published_whole) {
  fail_each([&] { (void)run_all_parts(); }, [](PartsPlan const& plan) { (void)finish_parts(plan, {.threads = 1}); });
}

INSTANTIATE_TEST_SUITE_P(All, FailingParts,
                         testing::Values(Fault{Call::openat, EACCES}, Fault{Call::pwrite, ENOSPC},
                                         Fault{Call::write, ENOSPC}, Fault{Call::fallocate, ENOSPC},
                                         Fault{Call::fsync, EIO}, Fault{Call::renameat, EIO}, Fault{Call::fstatat, EIO},
                                         Fault{Call::linkat, EIO}, Fault{Call::unlinkat, EIO},
                                         Fault{Call::flock, ENOLCK}, Fault{Call::random, EIO}),
                         [](auto const& tested) { return name_of(tested.param); });

/// A system that dies: after some calls, none has an effect, as if the process had been killed.
class DyingSystem final : public platform::System {
 public:
  explicit DyingSystem(int calls) : left_(calls) {}

  int openat(int directory, char const* name, int flags, mode_t mode) override {
    return (flags & O_ACCMODE) != O_RDONLY && dead() ? -1 : System::openat(directory, name, flags, mode);
  }
  ssize_t pwrite(int fd, void const* bytes, std::size_t size, off_t at) override {
    return dead() ? -1 : System::pwrite(fd, bytes, size, at);
  }
  /// Durability does not matter here and takes time.
  int fsync(int /*fd*/) override { return dead() ? -1 : 0; }
  int linkat(int from, char const* old_name, int to, char const* name) override {
    return dead() ? -1 : System::linkat(from, old_name, to, name);
  }
  int renameat(int from, char const* old_name, int to, char const* name) override {
    return dead() ? -1 : System::renameat(from, old_name, to, name);
  }
  int unlinkat(int directory, char const* name, int flags) override {
    return dead() ? -1 : System::unlinkat(directory, name, flags);
  }

 private:
  bool dead() {
    errno = EIO;
    return left_.fetch_sub(1) <= 0;
  }
  std::atomic<int> left_;
};

/// Runs `step` in a system that dies at a random call, or not at all. Returns whether it succeeded.
template <class Step>
bool survives(std::mt19937& random, int max_calls, Step const& step) {
  DyingSystem os(static_cast<int>(random() % 3 == 0 ? random() % static_cast<unsigned>(max_calls) : 1U << 30));
  platform::ScopedSystem const scope(os);
  try {
    step();
    return true;
  } catch (Error const&) {
    return false;
  }
}

class SimulatedParts : public test::PlannedParts {};

TEST_F(SimulatedParts, of_1000_tasks_with_deaths_and_repeats_end_in_a_plain_consolidate) {
  constexpr int count = 1000;
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  fs::remove_all(in());
  fs::create_directories(in());
  save_safetensors(in() / "model.safetensors", test::sample_weights(count, 2, 4, seed));
  std::ofstream(in() / "config.json") << "{}";
  checkpoint::ConsolidateOptions plain{.max_shard_bytes = 40};
  (void)checkpoint::consolidate(world_, plan(), folder_.path() / "plain", plain);
  PartsPlan::make(plan(), out(), {.parts = count, .max_shard_bytes = 40, .force = true}).save(plan_file());
  auto const loaded = load_plan();
  auto const old = state();

  int deaths = 0;
  for (int round = 0; round < 20 && (round == 0 || !loaded.missing().empty()); ++round) {
    auto order = loaded.missing();
    for (int repeat = 0; repeat < 50; ++repeat) order.push_back(static_cast<int>(random() % count));
    std::shuffle(order.begin(), order.end(), random);
    for (auto const part : order)
      deaths += survives(random, 20, [&] { (void)consolidate_part(loaded, part, {.threads = 1}); }) ? 0 : 1;
    if (!loaded.missing().empty()) {
      EXPECT_FALSE(survives(random, 20, [&] { (void)finish_parts(loaded); })) << "parts are missing";
    }
    ASSERT_EQ(state(), old);
  }
  EXPECT_THAT(loaded.missing(), IsEmpty());
  for (int attempt = 0; attempt < 8; ++attempt) (void)survives(random, 3000, [&] { (void)finish_parts(loaded); });
  (void)finish_parts(loaded);

  EXPECT_GT(deaths, count / 10);
  auto const names = names_in(out());
  EXPECT_EQ(names, names_in(folder_.path() / "plain"));
  for (auto const& name : names)
    EXPECT_EQ(test::text_of_file(out() / name), test::text_of_file(folder_.path() / "plain" / name)) << name;
}

}  // namespace
}  // namespace crossrank
