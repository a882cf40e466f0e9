#include "lib/node/memory/store_autotuner.hpp"

#include <algorithm>

namespace crossrank::node {

double StoreAutotuner::Times::median() noexcept {
  auto* const middle = of_byte.begin() + noted / 2;
  std::nth_element(of_byte.begin(), middle, of_byte.begin() + noted);
  return *middle;
}

StoreAutotuner::Step StoreAutotuner::next() noexcept {
  if (step_ == trial_steps + steps_between_trials) step_ = 0;
  auto const step = step_++;
  if (step < trial_steps) {
    auto const stores = step / steps_in_a_row % 2 == 0 ? StoreMode::normal : StoreMode::streaming;
    return {.stores = stores, .counts = step % steps_in_a_row != 0};
  }
  if (step == trial_steps + still_noted) decide();
  return {.stores = best_};
}

void StoreAutotuner::note(Step step, std::size_t bytes, std::chrono::nanoseconds took) noexcept {
  auto& times = step.stores == StoreMode::normal ? cached_ : streamed_;
  if (!step.counts || times.noted == times.of_byte.size()) return;
  times.of_byte[times.noted++] = static_cast<double>(took.count()) / static_cast<double>(bytes);
}

void StoreAutotuner::decide() noexcept {
  if (cached_.noted >= counted / 2 && streamed_.noted >= counted / 2)
    best_ = streamed_.median() < worth_it * cached_.median() ? StoreMode::streaming : StoreMode::normal;
  cached_.noted = 0;
  streamed_.noted = 0;
}

}  // namespace crossrank::node
