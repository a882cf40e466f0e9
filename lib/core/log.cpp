#include "lib/core/log.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "lib/core/immortal.hpp"

namespace crossrank {
namespace {

/// The sink in force. Threads and destructors that outlive `main` may still log.
struct SinkHolder {
  std::mutex mutex;
  std::shared_ptr<LogSink const> sink;
};

constinit Immortal<SinkHolder> holder;
// Pairs with nothing: a stale value costs one lock or drops an event that raced with `set_log_sink`.
constinit std::atomic<bool> has_sink{false};

std::shared_ptr<LogSink const> current_sink() {
  std::lock_guard const lock(holder.value.mutex);
  return holder.value.sink;
}

}  // namespace

char const* to_string(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::debug: return "debug";
    case LogLevel::info: return "info";
    case LogLevel::warning: return "warning";
    case LogLevel::error: return "error";
  }
  return "unknown";
}

void set_log_sink(LogSink sink) {
  auto next = sink ? std::make_shared<LogSink const>(std::move(sink)) : nullptr;
  bool const present = next != nullptr;
  {
    std::lock_guard const lock(holder.value.mutex);
    holder.value.sink.swap(next);
    has_sink.store(present, std::memory_order_relaxed);
  }
}

void log_event(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) noexcept {
  if (!has_sink.load(std::memory_order_relaxed)) return;
  try {
    if (auto const sink = current_sink()) {
      (*sink)({.level = level, .message = message, .fields = std::span<LogField const>(fields.begin(), fields.size())});
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): a failing log must not change what the program does
  }
}

}  // namespace crossrank
