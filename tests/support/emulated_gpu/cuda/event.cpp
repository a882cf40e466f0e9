// Events, also those that are shared between processes: these keep their state in a memfd that others map.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/support/emulated_gpu/cuda/capture.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/memory_file.hpp"
#include "tests/support/emulated_gpu/cuda/stream.hpp"

namespace emulated {
namespace {

/// State of an interprocess event: numbers of records asked for and done.
struct SharedRecord {
  std::atomic<std::uint64_t> asked;
  std::atomic<std::uint64_t> done;
};

struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::chrono::steady_clock::time_point time;
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  std::mutex mutex;
  std::shared_ptr<Record> last;  // null before the first record
  CapturedEvent captured;
  std::shared_ptr<MemoryFile> file;  // for an interprocess event

  SharedRecord* shared() const { return file ? reinterpret_cast<SharedRecord*>(file->bytes()) : nullptr; }
};

auto& events() {
  static auto* const instance = new Registry<CUevent, Event>;
  return *instance;
}

/// What a wait waits for: the record that was the newest when the wait was called.
struct Target {
  std::shared_ptr<Event> event;
  std::shared_ptr<Record> record;
  std::uint64_t number = 0;

  bool passed() const {
    if (event->file) return event->shared()->done.load(std::memory_order_acquire) >= number;
    if (!record) return true;
    std::lock_guard const lock(record->mutex);
    return record->done;
  }
  void wait() const {
    if (event->file) {
      while (!passed()) std::this_thread::sleep_for(std::chrono::microseconds(50));
      return;
    }
    if (!record) return;
    std::unique_lock lock(record->mutex);
    record->changed.wait(lock, [&] { return record->done; });
  }
};

Target target_of(std::shared_ptr<Event> const& event) {
  std::lock_guard const lock(event->mutex);
  return {event, event->last, event->file ? event->shared()->asked.load() : 0};
}

void record(CUevent handle, CUstream stream_handle, unsigned flags) {
  require(flags <= CU_EVENT_RECORD_EXTERNAL, CUDA_ERROR_INVALID_VALUE);
  auto const event = events().find(handle);
  auto const stream = stream_of(stream_handle);
  require(event->context == &stream->context, CUDA_ERROR_INVALID_HANDLE);
  bool const external = flags == CU_EVENT_RECORD_EXTERNAL;
  auto const captured = captured_end(*stream);
  if (captured.capture && !external) {
    std::lock_guard const lock(event->mutex);
    event->captured = captured;
    return;
  }
  auto const record = std::make_shared<Record>();
  std::uint64_t number = 0;
  {
    std::lock_guard const lock(event->mutex);
    event->captured = {};
    event->last = record;
    if (event->file) number = ++event->shared()->asked;
  }
  submit(stream, {.name = "event record", .run = [event, record, number] {
                    if (event->file) event->shared()->done.store(number, std::memory_order_release);
                    std::lock_guard const lock(record->mutex);
                    record->done = true;
                    record->time = std::chrono::steady_clock::now();
                    record->changed.notify_all();
                  }});
}

std::shared_ptr<Event> asked(CUevent handle, char const* call) {
  auto event = events().find(handle);
  CapturedEvent captured;
  {
    std::lock_guard const lock(event->mutex);
    captured = event->captured;
  }
  forbid_captured_event(captured);
  forbid_in_capture(call);
  return event;
}

float elapsed(CUevent first, CUevent second) {
  auto const a = events().find(first);
  auto const b = events().find(second);
  require(((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) == 0, CUDA_ERROR_INVALID_HANDLE);
  auto const from = target_of(a);
  auto const to = target_of(b);
  require(from.record && to.record, CUDA_ERROR_INVALID_HANDLE);
  require(from.passed() && to.passed(), CUDA_ERROR_NOT_READY);
  return std::chrono::duration<float, std::milli>(to.record->time - from.record->time).count();
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  return call("cuEventCreate", Needs::context, [&] {
    bool const shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    require(!shared || (flags & CU_EVENT_DISABLE_TIMING) != 0, CUDA_ERROR_INVALID_VALUE);
    auto event = std::make_shared<Event>();
    event->context = current();
    event->flags = flags;
    if (shared) event->file = MemoryFile::create("event", sizeof(SharedRecord));
    out(handle) = events().add(std::move(event));
    born(Kind::event);
  });
}

CUresult cuEventDestroy_v2(CUevent handle) {
  return call("cuEventDestroy_v2", Needs::context, [&] {
    events().remove(handle);
    died(Kind::event);
  });
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return call("cuEventRecord", Needs::context, [&] { record(event, stream, 0); });
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return call("cuEventRecordWithFlags", Needs::context, [&] { record(event, stream, flags); });
}

CUresult cuEventQuery(CUevent handle) {
  return call("cuEventQuery", Needs::context, [&] {
    bool const passed = target_of(asked(handle, "cuEventQuery")).passed();
    note_question(handle, passed);
    require(passed, CUDA_ERROR_NOT_READY);
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return call("cuEventSynchronize", Needs::context, [&] {
    auto const event = asked(handle, "cuEventSynchronize");
    static_cast<void>(log_call("host_wait"));
    target_of(event).wait();
    auto const sticky = static_cast<CUresult>(event->context->sticky.load());
    require(sticky == CUDA_SUCCESS, sticky);
  });
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
  return call("cuStreamWaitEvent", Needs::context, [&] {
    require(flags <= CU_EVENT_WAIT_EXTERNAL, CUDA_ERROR_INVALID_VALUE);
    auto const stream = stream_of(stream_handle);
    auto const event = events().find(handle);
    CapturedEvent captured;
    {
      std::lock_guard const lock(event->mutex);
      captured = event->captured;
    }
    bool const external = flags == CU_EVENT_WAIT_EXTERNAL;
    if (!external && captured_wait(stream, captured)) return;
    submit(stream, {.name = "event wait", .run = [target = target_of(event)] { target.wait(); }});
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent first, CUevent second) {
  return call("cuEventElapsedTime", Needs::context, [&] { out(milliseconds) = elapsed(first, second); });
}
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent first, CUevent second) {
  return call("cuEventElapsedTime_v2", Needs::context, [&] { out(milliseconds) = elapsed(first, second); });
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* ipc, CUevent handle) {
  return call("cuIpcGetEventHandle", Needs::context, [&] {
    auto const event = events().find(handle);
    require(event->file != nullptr, CUDA_ERROR_INVALID_HANDLE);
    std::memset(out(ipc).reserved, 0, sizeof ipc->reserved);
    auto const name = event->file->name();
    std::memcpy(ipc->reserved, &name, sizeof name);
  });
}

CUresult cuIpcOpenEventHandle(CUevent* handle, CUipcEventHandle ipc) {
  return call("cuIpcOpenEventHandle", Needs::context, [&] {
    FileName name;
    std::memcpy(&name, ipc.reserved, sizeof name);
    require(name.process != ::getpid(), CUDA_ERROR_INVALID_CONTEXT);
    auto event = std::make_shared<Event>();
    event->context = current();
    event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    event->file = MemoryFile::open(name);
    require(event->file != nullptr, CUDA_ERROR_INVALID_VALUE);
    out(handle) = events().add(std::move(event));
    born(Kind::event);
  });
}
}
