// A rank is killed, is stopped or throws in each part of a training step, in each unit. All ranks then end, and their
// errors name the rank and, while gradients or parameters travel, a parameter.
#include <csignal>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/support/process_ranks.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank::test::faults_test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr int ranks = 3;
constexpr int victim = 1;
constexpr char const* parts[] = {"forward 0",  "forward 1",  "forward 2", "backward 2",
                                 "backward 1", "backward 0", "step"};

/// SGD that reports an event in its step.
class WatchedSGD final : public Optimizer {
 public:
  WatchedSGD(std::shared_ptr<TrainableModel> model, std::function<void(std::string const&)> on_event)
      : Optimizer(std::move(model)), on_event_(std::move(on_event)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "WatchedSGD"; }
  [[nodiscard]] std::vector<std::string_view> kinds() const override { return {}; }

 private:
  void update(TrainedTensor& tensor) override {
    if (tensor.name == "layer1.weight") on_event_("step");
  }
  std::function<void(std::string const&)> on_event_;
};

void suffer(std::string const& fault) {
  if (fault == "killed") std::raise(SIGKILL);
  if (fault == "stopped") std::raise(SIGSTOP);
  if (fault == "throws") throw std::runtime_error("tensor on fire");
  if (fault == "throws a number") throw 42;
}

/// Trains until an error ends it. Returns the error.
std::string error_of_training(MeshCollective const& job, std::function<void(std::string const&)> const& on_event) {
  auto const tiny = std::make_shared<TinyMlp>();
  auto const model = distributed(job, tiny);
  tiny->on_event = on_event;
  WatchedSGD optimizer(model, on_event);
  try {
    for (int step = 0; step < 4; ++step) {
      model->zero_grad();
      run_pass(*model, step, 0, 3);
      optimizer.step();
    }
  } catch (std::exception const& e) {
    return e.what();
  } catch (int number) {
    return "number " + std::to_string(number);
  }
  return "no error";
}

/// Arguments: the transform, the part, the fault, the timeout in seconds. Prints the error.
CROSSRANK_RANK_SCENARIO(training_with_a_fault) {
  std::chrono::seconds const timeout(std::stol(self.arguments.at(3)));
  auto const world = connect({.backend = "shm", .timeout = timeout, .progress = ProgressMode::thread});
  MeshCollective const job(world, {.sharding_world_size = self.arguments.at(0) == "sharded" ? ranks : 1});
  int visits = 0;  // the fault comes in the second step
  self.say(error_of_training(job, [&](std::string const& at) {
    if (self.rank == victim && at == self.arguments.at(1) && ++visits == 2) suffer(self.arguments.at(2));
  }));
  return 0;
}

class TransformFaults : public testing::TestWithParam<std::string> {};

/// Returns whether the error came out of a call on gradients or parameters, which it then names.
testing::Matcher<std::string const&> names_victim_and_parameter() {
  return testing::AllOf(HasSubstr("rank 1"), AnyOf(HasSubstr("resource layer"), HasSubstr("resource scale")));
}

TEST_P(TransformFaults, a_killed_rank_is_named_by_all_others) {
  for (auto const* const part : parts) {
    SCOPED_TRACE(part);
    auto const job = run_ranks(ranks, "training_with_a_fault", {.arguments = {GetParam(), part, "killed", "300"}});
    EXPECT_EQ(job.ranks[victim].signal, SIGKILL);
    EXPECT_FALSE(job.timed_out);
    EXPECT_THAT(job.leaks, testing::IsEmpty());
    for (std::size_t const rank : {0U, 2U}) EXPECT_THAT(job.ranks[rank].out, names_victim_and_parameter());
  }
}

TEST_P(TransformFaults, an_exception_of_an_unknown_type_ends_all_ranks) {
  for (auto const* const part : parts) {
    SCOPED_TRACE(part);
    auto const job =
        run_ranks(ranks, "training_with_a_fault", {.arguments = {GetParam(), part, "throws a number", "300"}});
    EXPECT_TRUE(job.ok()) << job.text();
    for (std::size_t const rank : {0U, 2U}) EXPECT_THAT(job.ranks[rank].out, HasSubstr("exception of an unknown type"));
    EXPECT_THAT(job.ranks[victim].out, HasSubstr("number 42"));
  }
}

TEST_P(TransformFaults, an_exception_ends_all_ranks_with_its_message) {
  for (auto const* const part : parts) {
    SCOPED_TRACE(part);
    auto const job = run_ranks(ranks, "training_with_a_fault", {.arguments = {GetParam(), part, "throws", "300"}});
    EXPECT_TRUE(job.ok()) << job.text();
    for (std::size_t const rank : {0U, 2U}) {
      EXPECT_THAT(job.ranks[rank].out, testing::AllOf(names_victim_and_parameter(), HasSubstr("tensor on fire")));
      if (part == std::string("step")) {
        EXPECT_THAT(job.ranks[rank].out, HasSubstr("layer1.weight"));
      }
    }
    EXPECT_THAT(job.ranks[victim].out, HasSubstr("tensor on fire"));
  }
}

/// The stopped rank has the same error when it continues.
TEST_P(TransformFaults, a_stopped_rank_is_named_at_the_deadline) {
  for (auto const* const part : {"forward 1", "backward 1", "step"}) {
    SCOPED_TRACE(part);
    ProcessRanks job(ranks, "training_with_a_fault", {.arguments = {GetParam(), part, "stopped", "6"}});
    for (int const rank : {0, 2}) EXPECT_TRUE(job.wait_for_exit(rank, step_timeout));
    EXPECT_TRUE(job.running(victim));
    job.signal(victim, SIGCONT);
    auto const outcome = job.wait();
    EXPECT_TRUE(outcome.ok()) << outcome.text();
    for (auto const& rank : outcome.ranks) EXPECT_THAT(rank.out, HasSubstr("rank 1"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, TransformFaults, testing::Values("ddp", "sharded"),
                         [](auto const& tested) { return tested.param; });

}  // namespace
}  // namespace crossrank::test::faults_test
