#pragma once
#include <memory>

#include <crossrank/collective.hpp>

namespace crossrank {

/// While it lives, this rank runs the caller's code: whoever waits for it meanwhile waits up to the user limit.
class UserCode {
 public:
  explicit UserCode(Collective const& group);
  ~UserCode();
  UserCode(UserCode const&) = delete;
  UserCode& operator=(UserCode const&) = delete;

 private:
  std::shared_ptr<spi::Transport> transport_;
};

}  // namespace crossrank
