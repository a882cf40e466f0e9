#pragma once
#include <memory>

#include <crossrank/collective.hpp>

namespace crossrank {

/// While it lives, this rank runs the caller's code: whoever waits for it meanwhile waits up to the user limit.
class UserCodeScope {
 public:
  explicit UserCodeScope(Collective const& group);
  ~UserCodeScope();
  UserCodeScope(UserCodeScope const&) = delete;
  UserCodeScope& operator=(UserCodeScope const&) = delete;

 private:
  std::shared_ptr<spi::Transport> transport_;
};

}  // namespace crossrank
