#pragma once
#include <cstdint>
#include <functional>
#include <random>
#include <span>

#include <crossrank/collective.hpp>

/// Single steps of a random walk through the operations of a collective, each with what must come out of it.
namespace crossrank::test {

/// What all ranks know of a step before it: drawn from one seed, so that each rank can tell what every other one holds.
class Script {
 public:
  explicit Script(std::uint64_t seed) : random_(seed) {}
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }
  bool coin() { return below(2) == 0; }
  std::size_t size() {
    constexpr std::size_t limits[] = {1, 72, 200, 5000, 40000};
    return static_cast<std::size_t>(below(static_cast<int>(limits[below(5)]) + 1));
  }

 private:
  std::mt19937_64 random_;
};

/// Where a step is taken.
struct StepPlace {
  Collective const& group;
  Script& script;
  int number;  ///< of the step: data differ from step to step

  [[nodiscard]] int rank() const { return group.rank(); }
  [[nodiscard]] int ranks() const { return group.world_size(); }
  [[nodiscard]] int any_rank() const { return script.below(ranks()); }
};

enum class When { now, later };

/// A step that has begun: what is still to be waited for, if anything, and the look at what has come out.
struct BegunStep {
  Request request{};
  std::function<void()> check{};
};

/// Calls a operation, or starts its non-blocking form.
using RandomStep = BegunStep (*)(StepPlace const&, When);

[[nodiscard]] std::span<RandomStep const> reduction_steps();
[[nodiscard]] std::span<RandomStep const> movement_steps();
/// Objects and exchanges of messages: these have no form that returns at once.
[[nodiscard]] std::span<void (*const)(StepPlace const&)> object_steps();

}  // namespace crossrank::test
