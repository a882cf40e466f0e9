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
  /// Posts the next operation, which the one before has ended for; nothing when the call is done.
  [[nodiscard]] virtual std::optional<spi::RequestId> next(spi::Transport& transport) = 0;
};

/// Carries out one call, which outlives it: by the transport's own operation where it has one, else by a generic
/// algorithm over those that every transport has. All ranks decide alike.
class Execution {
 public:
  explicit Execution(Call const& call) : call_(call) {}
  explicit Execution(Call&&) = delete;
  ~Execution() = default;
  Execution(Execution const&) = delete;
  Execution& operator=(Execution const&) = delete;

  /// Posts the next operation once the one before has ended; nothing when the call is done.
  [[nodiscard]] std::optional<spi::RequestId> next(spi::Transport& transport);

 private:
  [[nodiscard]] std::optional<spi::RequestId> post_own(spi::Transport& transport) const;

  Call const& call_;
  std::unique_ptr<Algorithm> algorithm_{};
  bool begun_ = false;
};

}  // namespace crossrank::algorithms
