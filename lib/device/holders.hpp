#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace crossrank {

/// Those who keep the bytes of a storage from being written, each as long as it says so.
class Holders {
 public:
  /// Returns a text for people as long as it holds the bytes, then an empty one.
  using Who = std::function<std::string()>;

  void add(Who who) {
    std::lock_guard const lock(mutex_);
    std::erase_if(all_, [](Who const& one) { return one().empty(); });
    all_.push_back(std::move(who));
  }
  /// Returns the text of one of them; empty when there is none.
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
