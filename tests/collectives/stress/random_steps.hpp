#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/collective.hpp>

#include "lib/core/as_size.hpp"

/// Single steps of a random walk through the operations of a collective, with their expected results.
namespace crossrank::test {

/// Random choices that are the same on all ranks, so that each rank knows the data of every other one.
class Script {
 public:
  explicit Script(std::uint64_t seed) : random_(seed) {}
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }
  bool coin() { return below(2) == 0; }
  std::size_t size() {
    constexpr std::size_t limits[] = {1, 72, 200, 5000, 40000};
    return as_size(below(static_cast<int>(limits[below(5)]) + 1));
  }

 private:
  std::mt19937_64 random_;
};

/// Where a step is taken.
struct StepPlace {
  Collective const& group;
  Script& script;
  int number;  ///< number of the step; the data differ in each step

  [[nodiscard]] int rank() const { return group.rank(); }
  [[nodiscard]] int ranks() const { return group.world_size(); }
  [[nodiscard]] int any_rank() const { return script.below(ranks()); }
};

enum class When { now, later };

/// A step that has begun: the request to wait for, if any, and the check of its result.
struct BegunStep {
  Request request{};
  std::function<void()> check{};
};

/// Returns a check of the result of a step. An undefined tensor is not checked. `in` is kept until then.
inline std::function<void()> expecting(StepPlace const& at, std::shared_ptr<Tensor> out,
                                       std::vector<std::byte> expected, std::shared_ptr<Tensor> in = nullptr) {
  return [out = std::move(out), expected = std::move(expected), in = std::move(in), number = at.number] {
    if (!out->defined()) return;
    ASSERT_TRUE(std::ranges::equal(out->bytes(), expected)) << "step " << number << ", " << name_of(out->dtype());
  };
}

/// Calls an operation, or starts its non-blocking form.
using RandomStep = BegunStep (*)(StepPlace const&, When);

[[nodiscard]] std::span<RandomStep const> reduction_steps();
[[nodiscard]] std::span<RandomStep const> movement_steps();
/// Steps with objects and pairs of messages, which have no non-blocking form.
[[nodiscard]] std::span<void (*const)(StepPlace const&)> object_steps();

}  // namespace crossrank::test
