#include "collectives/nccl/communicator.hpp"

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/log.hpp"
#include "lib/device/cuda/device_state.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/signals_blocked.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::nccl {
namespace {

using api::Result;
using std::chrono::milliseconds;

constexpr auto grace = std::chrono::seconds(5);
/// How long an abort waits for a call of NCCL in another thread.
constexpr auto abort_delay = std::chrono::seconds(1);
constexpr auto shortest_nap = std::chrono::microseconds(20);
constexpr auto longest_nap = milliseconds(2);
constexpr int polls_before_nap = 50;

/// Runs a call of NCCL that ends a communicator. It blocks as long as a graph holds the communicator, so a thread goes
/// on with it after the grace.
void run_with_grace(char const* function, Device device, std::function<Result()> call) noexcept {
  try {
    auto const task = std::make_shared<std::packaged_task<Result()>>([device, call = std::move(call)] {
      cuda::ContextScope const scope(cuda::device_state(device));
      return call();
    });
    auto ended = task->get_future();
    platform::SignalsBlocked const blocked;
    try {
      std::thread([task] { (*task)(); }).detach();
    } catch (std::system_error const&) {  // no thread can be started, but running kernels must still end
      (*task)();
    }
    if (ended.wait_for(grace) == std::future_status::ready) {
      static_cast<void>(ended.get());
      return;
    }
    log_event(LogLevel::warning, "NCCL does not end a communicator", {{"function", function}});
  } catch (std::exception const& e) {
    log_event(LogLevel::warning, "a communicator of NCCL was left alone",
              {{"function", function}, {"error", e.what()}});
  }
}

/// Calls `done` until it returns true. Returns false when the time is over.
bool poll_for(std::function<bool()> const& done, milliseconds timeout) {
  platform::Deadline deadline(timeout);
  std::chrono::nanoseconds nap = shortest_nap;
  for (int polls = 0; !done(); ++polls) {
    if (polls < polls_before_nap) {
      platform::system().yield();
      continue;
    }
    deadline.tick();
    if (deadline.expired()) return false;
    platform::system().sleep(std::min<std::chrono::nanoseconds>(nap, deadline.next_wait()));
    nap = std::min<std::chrono::nanoseconds>(nap * 2, longest_nap);
  }
  return true;
}

}  // namespace

api::UniqueId Communicator::draw_id() {
  auto const& library = nccl_library();
  api::UniqueId id{};
  auto const result = library.functions.ncclGetUniqueId(&id);
  if (result != Result::success) throw_nccl_error(library.functions, result, "ncclGetUniqueId", "make a communicator");
  return id;
}

Communicator::Communicator(api::UniqueId const& id, spi::DevicePlace place, milliseconds timeout,
                           PollHook const& poll_hook)
    : library_(nccl_library()), place_(place), timeout_(timeout) {
  try {
    join(id);
    await_result("make a communicator", "ncclCommInitRankConfig", timeout, poll_hook);
  } catch (...) {
    abort();
    throw;
  }
}

void Communicator::join(api::UniqueId const& id) {
  cuda::ContextScope const scope(cuda::device_state(place_.device));
  api::Config config{.size = sizeof(api::Config),
                     .magic = api::config_magic,
                     .version = static_cast<unsigned>(api::oldest_version),
                     .blocking = 0,
                     .cga_cluster_size = api::undefined_int,
                     .min_ctas = api::undefined_int,
                     .max_ctas = api::undefined_int,
                     .net_name = nullptr,
                     .split_share = api::undefined_int,
                     .traffic_class = api::undefined_int};
  check(functions().ncclCommInitRankConfig(&comm_, place_.ranks, id, place_.rank, &config), "ncclCommInitRankConfig",
        "make a communicator");
}

void Communicator::close(Event const& last_work) noexcept {
  // A child after `fork` has no CUDA, and the parent's communicator is not its own.
  if (cuda::open_driver() == nullptr) return;
  try {
    deregister_memory(last_work);
    if (!finalize()) return;
  } catch (std::exception const& e) {
    log_event(LogLevel::warning, "a communicator of NCCL is aborted, because it does not end", {{"error", e.what()}});
    abort();
    return;
  }
  api::Comm* comm = nullptr;
  {
    std::lock_guard const calling(calls_mutex_);
    comm = take(End::closed);
  }
  if (comm == nullptr) return;
  run_with_grace("ncclCommDestroy", place_.device,
                 [destroy = functions().ncclCommDestroy, comm] { return destroy(comm); });
}

bool Communicator::finalize() {
  constexpr auto const* operation = "end a communicator";
  constexpr auto const* function = "ncclCommFinalize";
  {
    std::lock_guard const calling(calls_mutex_);
    auto* const comm = native();
    if (comm == nullptr) return false;  // it has ended before
    cuda::ContextScope const scope(cuda::device_state(place_.device));
    check(functions().ncclCommFinalize(comm), function, operation);
  }
  await_result(operation, function, grace, {});
  return true;
}

void Communicator::check(Result result, char const* function, char const* operation) const {
  if (result == Result::success || result == Result::in_progress) return;
  throw_nccl_error(functions(), result, function, operation);
}

void Communicator::await_result(char const* operation, char const* function, milliseconds timeout,
                                PollHook const& poll_hook) {
  auto const has_ended = [&] {
    auto const state = async_error();
    check(state, function, operation);
    if (state != Result::in_progress) return true;
    if (poll_hook) poll_hook();
    return false;
  };
  if (poll_for(has_ended, timeout)) return complete_job(operation, function);
  throw TimeoutError({.operation = operation,
                      .message = std::string(function) + " has not ended in time",
                      .expected = "within " + std::to_string(timeout.count()) + " ms",
                      .hint = "NCCL_DEBUG=INFO makes NCCL print what it waits for",
                      .rank = place_.rank,
                      .world_size = place_.ranks});
}

void Communicator::complete_job(char const* operation, char const* function) {
  std::lock_guard const calling(calls_mutex_);
  auto* const comm = native();
  if (comm == nullptr) return;
  int ranks = 0;
  check(functions().ncclCommCount(comm, &ranks), function, operation);
}

Result Communicator::post(api::Comm* comm, std::span<Step const> steps, char const*& function) {
  auto result = Result::success;
  bool const grouped = steps.size() > 1;
  if (grouped) result = functions().ncclGroupStart();
  for (auto const& step : steps) {
    if (result != Result::success && result != Result::in_progress) break;
    if (native() == nullptr) break;  // aborted meanwhile
    function = step.function;
    result = step.call(functions(), comm);
  }
  if (!grouped) return result;
  auto const ended = functions().ncclGroupEnd();
  return result == Result::success || result == Result::in_progress ? ended : result;
}

void Communicator::require_not_aborted(char const* operation) {
  if (native() != nullptr) return;
  throw BackendError({.operation = operation,
                      .message = "the communicator of the GPUs has been aborted",
                      .rank = place_.rank,
                      .world_size = place_.ranks,
                      .group_usable = false});
}

void Communicator::enqueue(char const* operation, std::span<Step const> steps, PollHook const& poll_hook) {
  if (steps.empty()) return;
  char const* function = "ncclGroupStart";
  {
    std::lock_guard const calling(calls_mutex_);
    require_not_aborted(operation);
    cuda::ContextScope const scope(cuda::device_state(place_.device));
    // Before NCCL 2.23 this launches the kernel, and blocks while the stream holds too much work.
    auto const result = post(native(), steps, function);
    require_not_aborted(operation);
    check(result, function, operation);
  }
  await_result(operation, function, timeout_, poll_hook);
}

void Communicator::register_memory(std::shared_ptr<spi::Storage> memory, PollHook const& poll_hook) {
  constexpr auto const* operation = "register a communication buffer";
  auto const& f = functions();
  bool const as_window = f.ncclCommWindowRegister != nullptr && f.ncclCommWindowDeregister != nullptr;
  if (!as_window && (f.ncclCommRegister == nullptr || f.ncclCommDeregister == nullptr)) return;
  auto const* const function = as_window ? "ncclCommWindowRegister" : "ncclCommRegister";
  {
    std::lock_guard const calling(calls_mutex_);
    require_not_aborted(operation);
    auto* const comm = native();
    cuda::ContextScope const scope(cuda::device_state(place_.device));
    auto& made = registered_.emplace_back(Registered{.memory = std::move(memory)});
    auto* const data = static_cast<void*>(made.memory->data());
    auto const bytes = made.memory->size_bytes();
    auto const result = as_window ? f.ncclCommWindowRegister(comm, data, bytes, &made.window, 0)
                                  : f.ncclCommRegister(comm, data, bytes, &made.handle);
    check(result, function, operation);
  }
  await_result(operation, function, timeout_, poll_hook);
}

void Communicator::deregister_memory(Event const& last_work) {
  if (registered_.empty()) return;
  constexpr auto const* operation = "deregister communication buffers";
  if (!poll_for([&] { return last_work.query(); }, grace)) {
    throw TimeoutError({.operation = operation,
                        .message = "collectives that may use the buffers have not ended in time",
                        .expected = "within " + std::to_string(milliseconds(grace).count()) + " ms",
                        .rank = place_.rank,
                        .world_size = place_.ranks});
  }
  for (auto const& one : registered_) {
    bool const as_window = one.window != nullptr;
    if (!as_window && one.handle == nullptr) continue;
    {
      std::lock_guard const calling(calls_mutex_);
      auto* const comm = native();
      if (comm == nullptr) return;  // the watchdog has aborted it
      cuda::ContextScope const scope(cuda::device_state(place_.device));
      auto const result = as_window ? functions().ncclCommWindowDeregister(comm, one.window)
                                    : functions().ncclCommDeregister(comm, one.handle);
      if (result != Result::success && result != Result::in_progress)
        log_event(LogLevel::warning, "NCCL does not deregister a buffer",
                  {{"error", functions().ncclGetErrorString(result)}});
    }
    await_result(operation, as_window ? "ncclCommWindowDeregister" : "ncclCommDeregister", grace, {});
  }
}

api::Comm* Communicator::native() noexcept {
  std::lock_guard const lock(mutex_);
  return comm_;
}

Result Communicator::async_error() noexcept {
  std::unique_lock const calling(calls_mutex_, std::try_to_lock);
  api::Comm* comm = nullptr;
  {
    std::lock_guard const lock(mutex_);
    if (comm_ == nullptr) return end_ == End::closed ? Result::success : Result::internal_error;
    comm = comm_;
  }
  if (!calling) return Result::in_progress;
  auto state = Result::internal_error;
  if (functions().ncclCommGetAsyncError(comm, &state) != Result::success) return Result::internal_error;
  return state;
}

api::Comm* Communicator::take(End how) noexcept {
  std::lock_guard const lock(mutex_);
  if (comm_ != nullptr) end_ = how;
  return std::exchange(comm_, nullptr);
}

void Communicator::abort() noexcept {
  api::Comm* comm = nullptr;
  {
    std::unique_lock calling(calls_mutex_, std::defer_lock);
    // A launch that blocks ends with the abort only. NCCL allows an abort during calls of other threads.
    static_cast<void>(poll_for([&] { return calling.try_lock(); }, abort_delay));
    comm = take(End::aborted);
  }
  if (comm == nullptr) return;
  run_with_grace("ncclCommAbort", place_.device, [abort = functions().ncclCommAbort, comm] { return abort(comm); });
}

}  // namespace crossrank::nccl
