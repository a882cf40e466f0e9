#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace crossrank {

/// The users of a storage's bytes that forbid writes to them. Each says itself when it no longer does.
class Holders {
 public:
  /// Describes a holder for people while it holds the bytes; then returns an empty text.
  using Who = std::function<std::string()>;

  void add(Who who) {
    std::lock_guard const lock(mutex_);
    std::erase_if(all_, [](Who const& one) { return one().empty(); });
    all_.push_back(std::move(who));
  }
  /// Returns the description of one holder, or an empty text if no holder is left.
  [[nodiscard]] std::string describe() const {
    std::lock_guard const lock(mutex_);
    for (auto const& one : all_) {
      if (auto text = one(); !text.empty()) return text;
    }
    return {};
  }

 private:
  mutable std::mutex mutex_{};
  std::vector<Who> all_{};
};

}  // namespace crossrank
