#pragma once
#include <array>
#include <chrono>
#include <cstddef>

#include "lib/tensor/streaming_copy.hpp"

namespace crossrank::node {

/// Chooses the faster way to store bytes that peers will read: through the caches, or with non-temporal stores.
///
/// Non-temporal stores are better while the ranks' cores share no cache: a line that a peer holds is then written and
/// read at a fraction of the speed. Virtual machines tell little about their caches and move between cores: two ranks
/// gathered 4 MiB through the caches in 0.2 ms in one minute, in 0.9 ms in another. So both ways are tried in turn from
/// time to time, and the better one is kept. For one thread.
class StoreAutotuner {
 public:
  /// Shorter stores are not measured.
  static constexpr std::size_t least_bytes = std::size_t{16} << 10;
  /// Number of steps in a row that a trial makes the same way. The first is not counted: it reads bytes that were
  /// stored the other way.
  static constexpr int steps_in_a_row = 4;
  static constexpr int turns = 2;  ///< of each way in a trial
  static constexpr int trial_steps = 2 * turns * steps_in_a_row;
  static constexpr int steps_between_trials = 512;
  /// Before the first trial: memory is touched for the first time.
  static constexpr int first_steps = 8;
  /// Chooses non-temporal stores only if they take less than this part of the time, so that chance does not decide.
  static constexpr double worth_it = 0.85;

  /// One step of a collective that stores for its peers.
  struct Step {
    StoreMode stores = StoreMode::normal;
    bool counts = false;  ///< in a trial
  };
  /// Returns the stores that the next step uses.
  [[nodiscard]] Step next() noexcept;
  /// Records how long a step took until the peers had read its bytes. Called before the step after the next one begins.
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
  StoreMode best_ = StoreMode::normal;
  Times cached_{};
  Times streamed_{};
};

}  // namespace crossrank::node
