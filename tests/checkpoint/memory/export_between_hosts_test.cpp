// Weights in the memory of ranks on two hosts, which exchange messages only. A host that is switched off at any step is
// a typed error on all other ranks.
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/memory/sharded_model.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::export_between_hosts_test {
namespace {

namespace fs = std::filesystem;

constexpr int ranks = 4;
constexpr int doomed = 3;

/// An operation, and what a rank expects of it.
struct Operation {
  char const* name;
  std::function<void(Collective const&, fs::path const&)> call;
};

test::ShardedModel model() { return test::random_model(77, ranks); }

std::vector<Operation> operations() {
  checkpoint::ExportOptions const options{.max_shard_bytes = 500, .force = true};
  return {{"consolidate",
           [=](Collective const& world, fs::path const& out) {
             auto const part = test::part_of(model(), world.rank(), ranks);
             (void)checkpoint::consolidate(world, part.weights, part.placements, out, options);
           }},
          {"iconsolidate",
           [=](Collective const& world, fs::path const& out) {
             auto const part = test::part_of(model(), world.rank(), ranks);
             checkpoint::iconsolidate(world, part.weights, part.placements, out, {.write = options}).wait();
           }},
          {"reshard", [](Collective const& world, fs::path const&) {
             auto const part = test::part_of(model(), world.rank(), ranks);
             EXPECT_EQ(test::bytes_of(checkpoint::reshard(world, part.weights, part.placements, {})),
                       test::bytes_of(model()));
           }}};
}

class BetweenHosts : public testing::TestWithParam<Operation> {
 protected:
  BetweenHosts() {
    fs::create_directories(out());
    save_safetensors(out() / "model.safetensors", old_);
  }
  [[nodiscard]] fs::path out() const { return folder_.path() / "out"; }
  [[nodiscard]] test::ModelBytes found() const { return test::read_checkpoint(out(), false); }

  test::TemporaryDirectory folder_{};
  StateDict old_{{"old", Tensor::of<float>({1, 2}, {2})}};
};

TEST_P(BetweenHosts, gives_the_whole_model) {
  test::run_message_ranks(ranks, [&](Collective const& world, test::MemoryHub&) { GetParam().call(world, out()); });
  bool const writes = std::string(GetParam().name) != "reshard";
  EXPECT_EQ(test::difference(writes ? test::bytes_of(model()) : test::bytes_of(old_), found()), "");
}

TEST_P(BetweenHosts, fails_on_all_ranks_when_a_host_is_switched_off) {
  int packets = 0;
  test::run_message_ranks(ranks, [&](Collective const& world, test::MemoryHub& hub) {
    GetParam().call(world, folder_.path() / "trial");
    if (world.rank() == doomed) packets = hub.sent(doomed);
  });
  for (int const quarter : {1, 2, 3}) {
    SCOPED_TRACE("after quarter " + std::to_string(quarter));
    test::run_message_ranks(ranks,
                            [&](Collective const& world, test::MemoryHub& hub) {
                              if (world.rank() == doomed) hub.disconnect_after(doomed, packets * quarter / 4);
                              try {
                                GetParam().call(world, out());
                                ADD_FAILURE() << "rank " << world.rank() << " succeeded";
                              } catch (Error const& error) {
                                bool const lost =
                                    error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::timeout;
                                EXPECT_TRUE(lost) << error.report();
                                if (world.rank() != doomed) {
                                  EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(doomed)) << error.report();
                                }
                              }
                            },
                            {.timeout = std::chrono::seconds(5)});
    EXPECT_EQ(test::difference(test::bytes_of(old_), found()), "");
    EXPECT_THAT(test::names_in(out()), testing::ElementsAre("model.safetensors"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, BetweenHosts, testing::ValuesIn(operations()),
                         [](auto const& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace crossrank::export_between_hosts_test
