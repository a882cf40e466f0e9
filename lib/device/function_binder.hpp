#pragma once
#include <string>
#include <utility>
#include <vector>

#include "lib/device/vendor_library.hpp"

namespace crossrank {

/// Finds the functions of a vendor's library.
class FunctionBinder {
 public:
  explicit FunctionBinder(VendorLibrary const& library) : library_(library) {}

  /// Finds a function without which the library is too old.
  template <class Function>
  void required(char const* name, Function& slot) {
    if (!bind(name, slot)) absent_.emplace_back(name);
  }
  /// Finds a function that older libraries lack; `use` is what needs it. Leaves null otherwise.
  template <class Function>
  void optional(char const* name, char const* use, Function& slot) {
    if (!bind(name, slot)) missing_.push_back(std::string(use) + " (" + name + ")");
  }
  /// Returns the required functions that were not found.
  [[nodiscard]] std::vector<std::string> const& absent() const noexcept { return absent_; }
  /// Returns what the missing optional functions are for: "memory pools (cuMemPoolCreate)".
  [[nodiscard]] std::vector<std::string> take_missing() noexcept { return std::move(missing_); }

 private:
  template <class Function>
  [[nodiscard]] bool bind(char const* name, Function& slot) {
    slot = reinterpret_cast<Function>(library_.find(name));
    return slot != nullptr;
  }

  VendorLibrary const& library_;
  std::vector<std::string> absent_{};
  std::vector<std::string> missing_{};
};

}  // namespace crossrank
