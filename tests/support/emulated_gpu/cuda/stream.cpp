#include "tests/support/emulated_gpu/cuda/stream.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "tests/support/emulated_gpu/cuda/capture.hpp"
#include "tests/support/emulated_gpu/cuda/emulated_gpu.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/options.hpp"

namespace emulated {
namespace {

std::atomic<std::uint64_t> next_id{1};

Registry<CUstream, Stream>& registry() {
  static auto* const instance = new Registry<CUstream, Stream>;
  return *instance;
}

/// Lets the exclusive tasks of one device run one after the other, in the order of their launch.
class ExclusiveOrder {
 public:
  /// Returns the position of a new task.
  std::uint64_t enter() {
    std::lock_guard const lock(mutex_);
    waiting_.insert(++last_);
    return last_;
  }
  /// Blocks until all tasks before this one have left; an aborted task does not wait.
  void wait(std::uint64_t position, std::function<bool()> const& aborted) {
    std::unique_lock lock(mutex_);
    while (*waiting_.begin() != position && !(aborted && aborted())) {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
  }
  void leave(std::uint64_t position) {
    std::lock_guard const lock(mutex_);
    waiting_.erase(position);
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t last_ = 0;
  std::set<std::uint64_t> waiting_;
};

ExclusiveOrder& exclusive_order(int device) {
  static auto* const all = new std::array<ExclusiveOrder, 64>;
  return all->at(static_cast<std::size_t>(device));
}

std::shared_ptr<Stream> per_thread(Context& context) {
  std::lock_guard const lock(context.mutex);
  auto& stream = context.per_thread[std::this_thread::get_id()];
  if (!stream) {
    stream = Stream::start(context, StreamKind::blocking, 0);
    context.streams.insert(stream);
  }
  return stream;
}

void order_with_legacy(Context& context, std::shared_ptr<Stream> const& stream, Task& task) {
  auto const follow = [&](std::shared_ptr<Stream> const& other) {
    if (auto const last = other->last(); !other->passed(last)) task.after.push_back({other, last});
  };
  if (stream->kind == StreamKind::blocking) follow(context.legacy);
  if (stream->kind != StreamKind::legacy) return;
  for (auto const& other : context.streams) {
    if (other->kind == StreamKind::blocking) follow(other);
  }
}

void create(CUstream* handle, unsigned flags, int priority) {
  require(flags <= CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
  Context& context = *current();
  auto const kind = flags == CU_STREAM_NON_BLOCKING ? StreamKind::non_blocking : StreamKind::blocking;
  auto stream = Stream::start(context, kind, priority);
  {
    std::lock_guard const lock(context.mutex);
    context.streams.insert(stream);
  }
  stream->has_handle = true;
  born(Kind::stream);
  out(handle) = registry().add(std::move(stream));
}

}  // namespace

Stream::Stream(Context& its_context, StreamKind its_kind, int its_priority)
    : context(its_context),
      kind(its_kind),
      priority(its_priority),
      id(next_id++),
      random_(options().seed * 1000003 + id) {}

std::shared_ptr<Stream> Stream::start(Context& context, StreamKind kind, int priority) {
  auto stream = std::make_shared<Stream>(context, kind, priority);
  std::thread([stream] { stream->run(); }).detach();
  return stream;
}

void Stream::push(Task task) {
  std::lock_guard const lock(mutex_);
  tasks_.push_back(std::move(task));
  ++pushed_;
  changed_.notify_all();
}

void Stream::close() {
  std::lock_guard const lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool Stream::closed() {
  std::lock_guard const lock(mutex_);
  return closed_ && done_ == pushed_;
}

std::uint64_t Stream::last() {
  std::lock_guard const lock(mutex_);
  return pushed_;
}

bool Stream::passed(std::uint64_t count) {
  std::lock_guard const lock(mutex_);
  return done_ >= count;
}

void Stream::wait(std::uint64_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= count; });
}

void Stream::wait_for_space(std::size_t limit) {
  std::unique_lock lock(mutex_);
  auto const has_space = [&] { return pushed_ - done_ < limit; };
  if (has_space()) return;
  static_cast<void>(log_call("full_launch_queue"));
  changed_.wait(lock, has_space);
}

void Stream::run() {
  for (;;) {
    Task task;
    bool idle = false;
    {
      std::unique_lock lock(mutex_);
      idle = tasks_.empty();
      changed_.wait(lock, [&] { return closed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    // A host that does not wait gets far ahead of a stream that was idle.
    if (idle || random_() % 8 == 0) delay();
    execute(task);
    task = {};  // frees what the task holds before anybody sees its end
    std::lock_guard const lock(mutex_);
    ++done_;
    changed_.notify_all();
  }
}

void Stream::delay() {
  if (options().delay_us == 0) return;
  auto const least = options().delay_us / 3;
  std::this_thread::sleep_for(std::chrono::microseconds(least + random_() % (options().delay_us - least + 1)));
}

void Stream::execute(Task& task) {
  for (auto const& point : task.after) point.stream->wait(point.count);
  try {
    if (task.exclusive) exclusive_order(context.device).wait(task.position, task.aborted);
    if (context.sticky == CUDA_SUCCESS) run_now(task);
  } catch (Failure const& failure) {
    fail(context, failure.result, task.name + " failed with the sticky error " + std::to_string(failure.result));
  }
  if (task.exclusive) exclusive_order(context.device).leave(task.position);
}

void run_now(Task& task) {
  if (task.kernel) {
    if (auto const fault = begin_kernel(task.aborted); fault != CUDA_SUCCESS) throw Failure{fault};
  }
  task.run();
}

bool& in_host_function() {
  thread_local bool inside = false;
  return inside;
}

std::shared_ptr<Stream> stream_of(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return current()->legacy;
  if (handle == CU_STREAM_PER_THREAD) return per_thread(*current());
  return registry().find(handle);
}

std::shared_ptr<Stream> current_stream_of(CUstream handle) {
  auto stream = stream_of(handle);
  require(&stream->context == current(), CUDA_ERROR_INVALID_HANDLE);
  return stream;
}

Point submit(std::shared_ptr<Stream> const& stream, Task task) {
  if (captured(stream, task)) return {};
  if (auto const limit = options().launch_queue; limit != 0 && task.kernel) stream->wait_for_space(limit);
  Context& context = stream->context;
  std::lock_guard const lock(context.mutex);
  require(context.alive, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  order_with_legacy(context, stream, task);
  if (task.exclusive) task.position = exclusive_order(context.device).enter();
  stream->push(std::move(task));
  return {stream, stream->last()};
}

void wait_on_host(Point const& point) {
  if (!point.stream) return;
  static_cast<void>(log_call("host_wait"));
  point.stream->wait(point.count);
  auto const sticky = static_cast<CUresult>(point.stream->context.sticky.load());
  require(sticky == CUDA_SUCCESS, sticky);
}

}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuStreamCreate(CUstream* handle, unsigned flags) {
  return call("cuStreamCreate", Needs::context, [&] { create(handle, flags, 0); });
}

CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
  return call("cuStreamCreateWithPriority", Needs::context, [&] { create(handle, flags, priority); });
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  return call("cuStreamDestroy_v2", Needs::context, [&] {
    auto const stream = registry().find(handle);
    forget_captured(*stream);
    registry().remove(handle);
    stream->close();
    if (stream->has_handle.exchange(false)) died(Kind::stream);
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return call("cuStreamQuery", Needs::context, [&] {
    auto const stream = stream_of(handle);
    forbid_captured(*stream);
    forbid_in_capture("cuStreamQuery");
    require(stream->passed(stream->last()), CUDA_ERROR_NOT_READY);
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return call("cuStreamSynchronize", Needs::context, [&] {
    auto const stream = stream_of(handle);
    forbid_captured(*stream);
    forbid_in_capture("cuStreamSynchronize");
    wait_on_host({stream, stream->last()});
  });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  return call("cuStreamGetFlags", Needs::context, [&] {
    out(flags) = stream_of(handle)->kind == StreamKind::non_blocking ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  });
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return call("cuStreamGetPriority", Needs::context, [&] { out(priority) = stream_of(handle)->priority; });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return call("cuStreamGetId", Needs::context, [&] { out(id) = stream_of(handle)->id; });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return call("cuStreamGetCtx", Needs::context, [&] { out(context) = handle_of(&stream_of(handle)->context); });
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return call("cuStreamGetDevice", Needs::context, [&] { out(device) = stream_of(handle)->context.device; });
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  return call("cuLaunchHostFunc", Needs::context, [&] {
    require(function != nullptr, CUDA_ERROR_INVALID_VALUE);
    submit(current_stream_of(handle), {.name = "host function", .run = [=] {
                                         in_host_function() = true;
                                         function(data);
                                         in_host_function() = false;
                                       }});
  });
}

CUresult emulated_enqueue(CUstream handle, EmulatedWork const* work) {
  try {
    require(current() != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    auto const owned = std::shared_ptr<void>(work->data, [release = work->release](void* data) {
      if (release != nullptr) release(data);
    });
    Task task{.name = work->name, .run = [owned, run = work->run] {
                if (auto const result = run(owned.get()); result != CUDA_SUCCESS) throw Failure{result};
              }};
    task.kernel = true;
    task.exclusive = work->exclusive != 0;
    if (work->aborted != nullptr) task.aborted = [owned, aborted = work->aborted] { return aborted(owned.get()) != 0; };
    submit(stream_of(handle), std::move(task));
    return CUDA_SUCCESS;
  } catch (Failure const& failure) {
    return failure.result;
  }
}

CUresult emulated_stream_device(CUstream handle, CUdevice* device) {
  try {
    if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *device = stream_of(handle)->context.device;
    return CUDA_SUCCESS;
  } catch (Failure const& failure) {
    return failure.result;
  }
}
}
