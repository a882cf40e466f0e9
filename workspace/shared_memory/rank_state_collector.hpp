#pragma once
#include <string>
#include <utility>

#include "workspace/shared_memory/contribution.hpp"

namespace crossrank::workspace {

/// Collects a contribution into a `RankState`.
class RankStateCollector final : public Collector {
 public:
  void expect(std::size_t tensors) override { state_.weights.reserve(tensors); }
  void config(Json value) override { state_.config = std::move(value); }
  void tensor(std::string_view name, Tensor value) override {
    state_.weights.insert_or_assign(std::string(name), std::move(value));
  }
  [[nodiscard]] RankState take() && { return std::move(state_); }

 private:
  RankState state_{};
};

}  // namespace crossrank::workspace
