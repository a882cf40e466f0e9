#pragma once
#include <memory>

#include <crossrank/collective.hpp>
#include <crossrank/spi/transport.hpp>

namespace crossrank {

/// Marks this rank as running code that may take long, such as the caller's. Meanwhile, peers wait for it up to the
/// user limit.
class UserCodeScope {
 public:
  explicit UserCodeScope(Collective const& group) : transport_(group.transport()) {
    transport_->mark_user_code(spi::UserCode::begins);
  }
  ~UserCodeScope() { transport_->mark_user_code(spi::UserCode::ends); }
  UserCodeScope(UserCodeScope const&) = delete;
  UserCodeScope& operator=(UserCodeScope const&) = delete;

 private:
  std::shared_ptr<spi::Transport> transport_;
};

}  // namespace crossrank
