#pragma once
#include <utility>

namespace crossrank {

/// Calls a function when the scope ends, also by an exception. The function must not throw.
template <class Call>
class AtScopeEnd {
 public:
  explicit AtScopeEnd(Call call) : call_(std::move(call)) {}
  ~AtScopeEnd() { call_(); }
  AtScopeEnd(AtScopeEnd const&) = delete;
  AtScopeEnd& operator=(AtScopeEnd const&) = delete;

 private:
  Call call_;
};

}  // namespace crossrank
