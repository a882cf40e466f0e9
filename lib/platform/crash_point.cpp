#include "lib/platform/crash_point.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include <csignal>
#include <unistd.h>

namespace crossrank::platform {
namespace {

/// Requests of the tests. Fixed storage, because a point may be where memory must not be allocated.
struct Wanted {
  std::mutex mutex{};
  std::array<char, 128> name{};  ///< armed point; may be empty
  int visits_left = 0;
  bool recording = false;
  std::array<char const*, 512> seen{};  ///< names visited, each once
  std::size_t seen_count = 0;
};

constinit Wanted wanted;

[[noreturn]] void die() noexcept {
  for (;;) ::kill(::getpid(), SIGKILL);
}

}  // namespace

constinit std::atomic<bool> CrashPoint::armed_{false};

void CrashPoint::visit() noexcept {
  std::lock_guard const lock(wanted.mutex);
  if (wanted.recording) {
    auto* const begin = wanted.seen.data();
    bool const known = std::any_of(begin, begin + wanted.seen_count,
                                   [this](char const* seen) { return std::strcmp(seen, name_) == 0; });
    if (!known && wanted.seen_count < wanted.seen.size()) wanted.seen[wanted.seen_count++] = name_;
  }
  if (wanted.visits_left > 0 && std::strcmp(wanted.name.data(), name_) == 0 && --wanted.visits_left == 0) die();
}

void arm_crash_point(std::string_view name, int nth) {
  std::lock_guard const lock(wanted.mutex);
  wanted.name.fill('\0');
  name.copy(wanted.name.data(), wanted.name.size() - 1);
  wanted.visits_left = nth;
  CrashPoint::armed_.store(true, std::memory_order_relaxed);  // the mutex orders what visit() reads
}

void record_crash_points(bool on) {
  std::lock_guard const lock(wanted.mutex);
  if (on) wanted.seen_count = 0;
  wanted.recording = on;
  CrashPoint::armed_.store(on || wanted.visits_left > 0, std::memory_order_relaxed);
}

std::vector<std::string> recorded_crash_points() {
  std::vector<std::string> names;
  {
    std::lock_guard const lock(wanted.mutex);
    names.assign(wanted.seen.data(), wanted.seen.data() + wanted.seen_count);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace crossrank::platform
