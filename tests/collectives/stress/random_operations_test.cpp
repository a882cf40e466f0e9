#include <chrono>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/collectives/stress/random_steps.hpp"
#include "tests/support/thread_ranks.hpp"

/// Random sequences of operations, the same on every rank, compared with a sequential model.
namespace crossrank::test {
namespace {

constexpr int steps = 2'300;  // of each walk: more than 20,000 in all

std::uint64_t draw_seed() {
  if (auto const* const given = std::getenv("CROSSRANK_TEST_SEED")) return std::strtoull(given, nullptr, 10);
  return std::random_device{}();
}

/// One rank's walk through the script. It uses the innermost group on a stack of groups.
class Walk {
 public:
  Walk(Collective const& world, std::uint64_t seed) : script_(seed), groups_{world} {}

  void step(int number) {
    number_ = number;
    switch (script_.below(8)) {
      case 0: return all_gather_bytes();
      case 1: return ring();
      case 2: return script_.coin() ? open_group() : close_group();
      case 3: return started_ahead();
      case 4: return one_of(object_steps())(place());
      case 5: return several_at_once();
      default: break;
    }
    one_of_all()(place(), When::now).check();
  }
  void end() {
    while (groups_.size() > 1) close_group();
  }

 private:
  [[nodiscard]] Collective const& group() const { return groups_.back(); }
  /// Returns the bytes that rank `rank` of the group holds in this step.
  [[nodiscard]] std::vector<std::byte> bytes_of(int rank, std::size_t size) const {
    return pattern(size, number_ * 31 + rank);
  }

  [[nodiscard]] StepPlace place() { return {group(), script_, number_}; }
  template <class Step>
  Step one_of(std::span<Step const> all) {
    return all[as_size(script_.below(static_cast<int>(all.size())))];
  }
  RandomStep one_of_all() { return script_.below(3) == 0 ? one_of(reduction_steps()) : one_of(movement_steps()); }

  /// Starts several operations one after the other and waits for them in another order.
  void several_at_once() {
    std::vector<BegunStep> begun;
    for (int i = script_.below(4); i >= 0; --i) begun.push_back(one_of_all()(place(), When::later));
    while (!begun.empty()) {
      auto const chosen = begun.begin() + script_.below(static_cast<int>(begun.size()));
      chosen->request.wait();
      chosen->check();
      begun.erase(chosen);
    }
  }

  void all_gather_bytes() {
    std::vector<std::size_t> sizes;
    for (int rank = 0; rank < group().world_size(); ++rank) sizes.push_back(script_.size());
    auto const mine = as_size(group().rank());
    auto const all = group().all_gatherv(bytes_of(group().rank(), sizes[mine]));
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
      ASSERT_EQ(all[rank], bytes_of(static_cast<int>(rank), sizes[rank])) << "step " << number_;
    }
  }

  /// Every rank sends some messages to the next rank and receives those of the previous one.
  void ring() {
    int const n = group().world_size();
    int const messages = script_.below(12) + 1;
    std::vector<std::size_t> sizes;
    for (int i = 0; i < messages; ++i) sizes.push_back(script_.size());
    if (n == 1) return;
    auto& transport = *group().transport();
    int const next = (group().rank() + 1) % n;
    int const before = (group().rank() + n - 1) % n;
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in;
    std::vector<spi::RequestId> request_ids;
    for (int i = 0; i < messages; ++i) {
      out.push_back(bytes_of(group().rank() + 100 * i, sizes[as_size(i)]));
      in.emplace_back(sizes[as_size(i)]);
    }
    for (int i = 0; i < messages; ++i) {
      request_ids.push_back(transport.post_send({.bytes = out[as_size(i)]}, next, static_cast<std::uint32_t>(i)));
      request_ids.push_back(transport.post_recv({.bytes = in[as_size(i)]}, before, static_cast<std::uint32_t>(i)));
    }
    for (auto const request_id : request_ids) transport.wait(request_id, group().timeout_policy());
    for (int i = 0; i < messages; ++i) {
      ASSERT_EQ(in[as_size(i)], bytes_of(before + 100 * i, sizes[as_size(i)])) << "step " << number_;
    }
  }

  /// All ranks of the group join the new group, rotated by some places, so that the walks stay together.
  void open_group() {
    int const n = group().world_size();
    int const turn = script_.below(n);
    if (groups_.size() == 5) return;
    std::vector<int> list;
    for (int i = 0; i < n; ++i) list.push_back((i + turn) % n);
    auto made = group().split(std::vector<std::vector<int>>{list});
    ASSERT_EQ(made.rank(), (group().rank() + n - turn) % n) << "step " << number_;
    groups_.push_back(std::move(made));
  }

  void close_group() {
    bool const drop = script_.below(2) == 0;
    if (groups_.size() == 1) return;
    if (!drop) groups_.back().close();
    groups_.pop_back();
  }

  void started_ahead() {
    auto const size = script_.size();
    int const root = script_.below(group().world_size());
    std::vector<std::vector<std::byte>> data(3, std::vector<std::byte>(size));
    std::vector<Tensor> tensors;
    std::vector<Request> requests;
    for (int i = 0; i < 3; ++i) {
      auto& bytes = data[as_size(i)];
      if (group().rank() == root) bytes = bytes_of(root + 10 * i, size);
      tensors.push_back(Tensor::from_blob(bytes.data(), {static_cast<std::int64_t>(size)}, Dtype::u8));
    }
    for (auto& tensor : tensors) requests.push_back(group().ibroadcast(tensor, {root}));
    for (auto& request : requests) request.wait();
    for (int i = 0; i < 3; ++i) ASSERT_EQ(data[as_size(i)], bytes_of(root + 10 * i, size)) << "step " << number_;
  }

  Script script_;
  std::vector<Collective> groups_;
  int number_ = 0;
};

/// Parameters: number of ranks, and number of the walk.
class RandomOperations : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(RandomOperations, match_the_model) {
  auto const seed = draw_seed();
  SCOPED_TRACE("CROSSRANK_TEST_SEED=" + std::to_string(seed));
  RecordProperty("seed", std::to_string(seed));
  auto const walk_of = [seed](Collective world) {
    Walk walk(world, seed);
    for (int i = 0; i < steps && !testing::Test::HasFatalFailure(); ++i) walk.step(i);
    walk.end();
    world.close();
  };
  // A long deadline, for a machine under load.
  run_thread_ranks(std::get<0>(GetParam()), walk_of,
                   {.timeout = std::chrono::minutes(2), .deadline = std::chrono::minutes(4)});
  if (testing::Test::HasFailure())
    std::fprintf(stderr, "run again with CROSSRANK_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RandomOperations, testing::Combine(testing::Values(2, 3, 4), testing::Range(0, 3)),
                         [](auto const& one) {
                           return std::to_string(std::get<0>(one.param)) + "_walk_" +
                                  std::to_string(std::get<1>(one.param));
                         });

}  // namespace
}  // namespace crossrank::test
