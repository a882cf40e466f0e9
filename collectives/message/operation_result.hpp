#pragma once
#include <exception>
#include <utility>

namespace crossrank::message {

/// How an operation has ended.
struct OperationResult {
  bool completed = false;
  std::exception_ptr failure{};  ///< of this operation alone; the group stays usable

  void fail(std::exception_ptr error) noexcept {
    failure = std::move(error);
    completed = true;
  }
};

}  // namespace crossrank::message
