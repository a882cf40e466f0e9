#pragma once
#include <memory>

#include <crossrank/collective.hpp>

namespace crossrank {

/// Marks this rank as running the caller's code. Meanwhile, peers wait for it up to the user limit.
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
