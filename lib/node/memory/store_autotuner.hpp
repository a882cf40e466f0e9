#pragma once
#include <array>
#include <chrono>
#include <cstddef>

#include "lib/tensor/streaming_copy.hpp"

namespace crossrank::node {

/// Which way of storing what peers read is the fast one: through the caches, or past them.
///
/// Past them is the better way while the ranks' cores have no cache in common: a line that a peer holds is then written
/// and read at a fraction of the speed. Virtual machines say little about their caches and move from core to core: in
/// one minute two ranks gathered 4 MiB through the caches in 0.2 ms, in another in 0.9. So both ways are tried in turn,
/// now and then, and the better one is kept. For one thread.
class StoreAutotuner {
 public:
  /// Shorter stores say nothing.
  static constexpr std::size_t least_bytes = std::size_t{16} << 10;
  /// Steps of a trial that go the same way, one after the other. The first is not counted: it reads what was stored the
  /// other way.
  static constexpr int steps_in_a_row = 4;
  static constexpr int turns = 2;  ///< of each way in a trial
  static constexpr int trial_steps = 2 * turns * steps_in_a_row;
  static constexpr int steps_between_trials = 512;
  /// Before the first trial: memory is touched for the first time.
  static constexpr int first_steps = 8;
  /// Past the caches only if that takes less than this part of the time: chance is no reason.
  static constexpr double worth_it = 0.85;

  /// One step of a collective that stores for its peers.
  struct Step {
    platform::StoreMode stores = platform::StoreMode::normal;
    bool counts = false;  ///< in a trial
  };
  /// How the next step is to store.
  [[nodiscard]] Step next() noexcept;
  /// How long such a step took until its peers' bytes had been read; at the latest before the next but one begins.
  void note(Step step, std::size_t bytes, std::chrono::nanoseconds took) noexcept;

 private:
  static constexpr int counted = turns * (steps_in_a_row - 1);
  static constexpr int still_noted = 2;  ///< steps after a trial until all of its own have been noted
  struct Times {
    std::array<double, counted> of_byte{};
    std::size_t noted = 0;
    [[nodiscard]] double median() noexcept;
  };

  void decide() noexcept;

  int step_ = trial_steps + steps_between_trials - first_steps;  ///< of the trial, then those after it
  platform::StoreMode best_ = platform::StoreMode::normal;
  Times cached_{};
  Times streamed_{};
};

}  // namespace crossrank::node
