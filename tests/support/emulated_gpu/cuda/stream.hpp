// Streams: each is a thread that runs operations in order, after a delay that the seed decides.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/emulated_gpu/cuda/api.hpp"
#include "tests/support/emulated_gpu/cuda/context.hpp"

namespace emulated {

struct Capture;
class Stream;

/// A point in a stream: passed when the stream has run that many operations.
struct Point {
  std::shared_ptr<Stream> stream;
  std::uint64_t count = 0;
};

/// One operation of a stream, or one node of a graph.
struct Task {
  std::string name;
  std::function<void()> run;
  bool kernel = false;              // counts for injected hangs and failures
  bool exclusive = false;           // starts in the order of enqueueing among exclusive tasks of its device
  std::function<bool()> aborted{};  // ends waits of this task
  std::vector<Point> after{};
  std::uint64_t position = 0;  // place among the exclusive tasks
};

enum class StreamKind { blocking, non_blocking, legacy };

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  /// Makes a stream and its thread; the caller enters it into its context.
  static std::shared_ptr<Stream> start(Context& context, StreamKind kind, int priority);

  Stream(Context& context, StreamKind kind, int priority);
  Stream(Stream const&) = delete;
  Stream& operator=(Stream const&) = delete;

  /// Puts a task at the end. The caller holds the mutex of the context.
  void push(Task task);
  /// Lets the thread end when all tasks have run.
  void close();
  /// True when the stream is closed and has run all its tasks.
  bool closed();
  std::uint64_t last();
  bool passed(std::uint64_t count);
  /// Blocks until `count` operations have run.
  void wait(std::uint64_t count);
  /// Blocks as long as `limit` operations or more have not run.
  void wait_for_space(std::size_t limit);

  Context& context;
  StreamKind const kind;
  int const priority;
  std::uint64_t const id;

  std::atomic<bool> has_handle{false};  // counts among the live streams

  // Guarded by the mutex of captures.
  std::shared_ptr<Capture> capture;
  std::vector<std::size_t> tail;  // nodes that the next captured operation follows

 private:
  void run();
  void execute(Task& task);
  void delay();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  bool closed_ = false;
  std::mt19937_64 random_;
};

/// The stream that a handle names for the calling thread.
std::shared_ptr<Stream> stream_of(CUstream handle);
/// The same, for an operation: the stream belongs to the current context.
std::shared_ptr<Stream> current_stream_of(CUstream handle);

/// Enqueues a task, ordered with the legacy stream, or captures it. Returns where the task ends.
Point submit(std::shared_ptr<Stream> const& stream, Task task);

/// Waits on the host for a point; counts as "host_wait".
void wait_on_host(Point const& point);

/// Runs a task that has its turn: a kernel may hang or fail because a test asked for it.
void run_now(Task& task);

/// True in a function that cuLaunchHostFunc has put on a stream.
bool& in_host_function();

}  // namespace emulated
