#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include <crossrank/error.hpp>

namespace crossrank {

/// A vendor's library that the process opens at most once, or the error of the attempt. Nothing is ever freed, because
/// threads and communicators that use the library may outlive `main`.
template <class Library>
class OpenedOnce {
 public:
  /// Returns the library. The first call opens it by `open()`; the others wait for that call. `UnavailableError`, the
  /// same for all calls, when it could not be opened. Other exceptions of `open` reach one caller, and the next call
  /// tries again.
  template <class Open>
  [[nodiscard]] Library const& get(Open const& open) {
    auto const* found = outcome_.load(std::memory_order_acquire);
    if (found == nullptr) {
      std::call_once(once_, [&] { keep(open); });
      found = outcome_.load(std::memory_order_acquire);
    }
    if (found->error) throw UnavailableError(*found->error);
    return *found->library;
  }

  /// Returns the library if a call has opened it, else null. Does not block.
  [[nodiscard]] Library const* if_open() const noexcept {
    auto const* const found = outcome_.load(std::memory_order_acquire);
    return found != nullptr && found->library ? &*found->library : nullptr;
  }

 private:
  struct Outcome {
    std::optional<Library> library{};
    std::optional<UnavailableError> error{};
  };

  template <class Open>
  void keep(Open const& open) {
    auto made = std::make_unique<Outcome>();
    try {
      made->library.emplace(open());
    } catch (UnavailableError const& error) {
      made->error.emplace(error);
    }
    outcome_.store(made.release(), std::memory_order_release);  // pairs with the loads of `get` and `if_open`
  }

  std::once_flag once_{};
  std::atomic<Outcome const*> outcome_{nullptr};
};

}  // namespace crossrank
