#pragma once

namespace crossrank {

/// Sets a flag until the end of the scope. The flag must outlive it.
class FlagScope {
 public:
  explicit FlagScope(bool& flag) noexcept : flag_(flag) { flag_ = true; }
  ~FlagScope() { flag_ = false; }
  FlagScope(FlagScope const&) = delete;
  FlagScope& operator=(FlagScope const&) = delete;

 private:
  bool& flag_;
};

}  // namespace crossrank
