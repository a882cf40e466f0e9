#include "lib/core/log.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "lib/core/no_destructor.hpp"
#include "lib/core/settings.hpp"
#include "lib/core/text/terminal_text.hpp"

namespace crossrank {
namespace {

/// The current sink. Threads and destructors may still log after `main` has returned.
struct SinkHolder {
  std::mutex mutex;
  std::shared_ptr<LogSink const> sink;
};

constinit NoDestructor<SinkHolder> holder;
constinit std::atomic<bool> forks_safely{false};

// A child has only the thread that forked. A mutex that another thread held at the fork would stay locked in the child.
void lock_for_fork() { holder.value.mutex.lock(); }
void unlock_after_fork() { holder.value.mutex.unlock(); }

// These atomics pair with nothing. A stale value costs one lock, or misses or prints an event that raced with the
// change.
constinit std::atomic<bool> has_sink{false};
constexpr int unread = -1;
constinit std::atomic<int> threshold{unread};
constinit std::atomic<int> own_rank{-1};

std::shared_ptr<LogSink const> current_sink() {
  std::lock_guard const lock(holder.value.mutex);
  return holder.value.sink;
}

bool wanted(LogLevel level) {
  auto least = threshold.load(std::memory_order_relaxed);
  if (least == unread) least = static_cast<int>(threshold_of_environment());
  return static_cast<int>(level) >= least;
}

/// Writes a line in one piece. Drops the line when standard error blocks for a while, because this may be the thread
/// that sends the heartbeat.
void print(LogEvent const& event) {
  constexpr int max_wait_ms = 50;
  constexpr std::size_t max = 4000;  // a pipe that is ready accepts this much at once
  auto const rank = own_rank.load(std::memory_order_relaxed);
  auto line = std::string("crossrank: ") + (rank < 0 ? "" : "rank " + std::to_string(rank) + ": ") +
              to_string(event.level) + ": " + text_of(event);
  line.resize(std::min(line.size(), max));
  line += '\n';
  pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  // To write to a pipe without a reader would raise SIGPIPE.
  if (::poll(&ready, 1, max_wait_ms) != 1 || ready.revents != POLLOUT) return;
  [[maybe_unused]] auto const written =
      ::write(STDERR_FILENO, line.data(), line.size());  // a failure cannot be reported anywhere
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
  if (!forks_safely.exchange(true, std::memory_order_relaxed))
    static_cast<void>(::pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork));
  {
    std::lock_guard const lock(holder.value.mutex);
    holder.value.sink.swap(next);
    has_sink.store(present, std::memory_order_relaxed);
  }
}

void set_log_process(LogProcess process) noexcept {
  threshold.store(static_cast<int>(process.threshold), std::memory_order_relaxed);
  own_rank.store(process.rank, std::memory_order_relaxed);
}

std::string text_of(LogEvent const& event) {
  std::string text(event.message);
  char const* separator = " (";
  for (auto const& [key, value] : event.fields) {
    text.append(separator).append(key).append(" ").append(value);
    separator = ", ";
  }
  if (!event.fields.empty()) text += ')';
  return terminal_text(text);
}

void log_event(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) noexcept {
  try {
    LogEvent const event{
        .level = level, .message = message, .fields = std::span<LogField const>(fields.begin(), fields.size())};
    if (auto const sink = has_sink.load(std::memory_order_relaxed) ? current_sink() : nullptr) {
      (*sink)(event);
    } else if (wanted(level)) {
      print(event);
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): a failing log must not change the program's behaviour
  }
}

}  // namespace crossrank
