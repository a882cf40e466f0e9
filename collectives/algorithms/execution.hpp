#pragma once
#include <memory>
#include <optional>
#include <utility>

#include "collectives/algorithms/call.hpp"

namespace crossrank::algorithms {

/// A call that takes several operations of the transport, one after the other.
class Algorithm {
 public:
  virtual ~Algorithm() = default;
  /// Posts the next operation. The one before must have ended. Returns nothing when the call is done.
  [[nodiscard]] virtual std::optional<spi::RequestId> next(spi::Transport& transport) = 0;
};

/// Runs one call: by the transport's own operation if it has one, otherwise by a generic algorithm over the operations
/// that every transport has. All ranks choose alike. The call must outlive it.
class Execution {
 public:
  explicit Execution(Call const& call) : call_(call) {}
  explicit Execution(Call&&) = delete;
  ~Execution() = default;
  Execution(Execution const&) = delete;
  Execution& operator=(Execution const&) = delete;

  /// Posts the next operation. The one before must have ended. Returns nothing when the call is done.
  [[nodiscard]] std::optional<spi::RequestId> next(spi::Transport& transport);

 private:
  [[nodiscard]] std::optional<spi::RequestId> post_own(spi::Transport& transport) const;

  Call const& call_;
  std::unique_ptr<Algorithm> algorithm_{};
  bool begun_ = false;
};

}  // namespace crossrank::algorithms
