#include <crossrank/log.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <pthread.h>

#include "interpreter.hpp"
#include "module.hpp"
#include "own_thread.hpp"

namespace crossrank::python {
namespace {

using namespace std::chrono_literals;

/// A copy of a `LogEvent`.
struct StoredEvent {
  LogLevel level;
  std::string message;
  std::vector<std::pair<std::string, std::string>> fields{};
};

StoredEvent stored(LogEvent const& event) {
  StoredEvent copy{.level = event.level, .message = std::string(event.message)};
  for (auto const& [key, value] : event.fields) copy.fields.emplace_back(key, value);
  return copy;
}

/// Returns text for Python. A path in a message may be anything, so other bytes than UTF-8 become escapes.
nb::object python_text(std::string const& text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

/// Passes the library's events to Python's logging.
///
/// The library logs in any thread and under its locks, where nothing may wait for the GIL. So the sink only stores an
/// event, and a thread without locks passes it on. That thread ends when no event is left.
class LogRelay {
 public:
  void push(LogEvent const& event) {
    std::lock_guard const lock(mutex_);
    if (waiting_.size() >= max_waiting) {
      ++dropped_;
      return;
    }
    waiting_.push_back(stored(event));
    if (!delivers_) delivers_ = start_own_thread([this] { deliver(); });  // else the next event tries again
  }

  /// Blocks until all events have been passed on, at most for a second. Called without the GIL.
  void flush() {
    std::unique_lock lock(mutex_);
    idle_.wait_for(lock, 1s, [&] { return !delivers_; });
  }

  // A thread may hold the mutex during a fork, and the child has no thread that passes events on.
  void before_fork() { mutex_.lock(); }
  void in_parent() { mutex_.unlock(); }
  void in_child() {
    waiting_.clear();
    delivers_ = false;
    mutex_.unlock();
  }

 private:
  static constexpr std::size_t max_waiting = 1000;

  void deliver() {
    for (;;) {
      std::deque<StoredEvent> events;
      std::size_t dropped = 0;
      {
        std::lock_guard const lock(mutex_);
        events.swap(waiting_);
        dropped = std::exchange(dropped_, 0);
        if (events.empty()) {
          delivers_ = false;
          idle_.notify_all();
          return;
        }
      }
      if (dropped != 0)
        events.push_back({LogLevel::warning, std::to_string(dropped) + " events were dropped, there were too many"});
      pass_on(events);
    }
  }

  static void pass_on(std::deque<StoredEvent> const& events) {
    InterpreterHold const hold;
    if (!hold) return;
    AcquiredGil const gil;
    try {
      auto const emit = nb::module_::import_("crossrank.logs").attr("emit");
      for (auto const& event : events) {
        nb::dict fields;
        for (auto const& [key, value] : event.fields) fields[python_text(key)] = python_text(value);
        emit(to_string(event.level), python_text(event.message), fields);
      }
    } catch (nb::python_error& error) {  // of a handler of the program, as `logging` reports them
      error.discard_as_unraisable("crossrank.logs");
    }
  }

  std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<StoredEvent> waiting_;
  std::size_t dropped_ = 0;
  bool delivers_ = false;
};

constinit LogRelay* relay = nullptr;  // never freed: threads of the library may log after the interpreter's end

/// Passes the events to Python's logging until the interpreter's shutdown. Call it once.
void log_to_python() {
  relay = std::make_unique<LogRelay>().release();
  ::pthread_atfork([] { relay->before_fork(); }, [] { relay->in_parent(); }, [] { relay->in_child(); });
  set_log_sink([](LogEvent const& event) { relay->push(event); });
  auto const leave = nb::cpp_function([] {
    set_log_sink({});  // from here on the library writes to standard error
    ReleasedGil const released;
    relay->flush();
  });
  nb::module_::import_("atexit").attr("register")(leave);
}

}  // namespace

void bind_log(nb::module_& module) { module.def("log_to_python", &log_to_python); }

}  // namespace crossrank::python
