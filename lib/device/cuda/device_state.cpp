#include "lib/device/cuda/device_state.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/log.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/device/cuda/kernels/kernels.hpp"

namespace crossrank::cuda {
namespace {

using api::DeviceAttribute;
using api::Result;

// A pool without a threshold gives its memory back at each synchronization, and the next tensor pays for it again. A
// pool that keeps everything starves other libraries of the process.
constexpr std::uint64_t pool_keeps = std::uint64_t{1} << 30;

int attribute_or_zero(Driver const& driver, DeviceAttribute which, int device) {
  int value = 0;
  // An older driver does not know a newer attribute: the device then lacks the feature.
  return driver.functions.cuDeviceGetAttribute(&value, which, device) == Result::success ? value : 0;
}

/// States of all GPUs. Each is made at its first use and never destroyed, because tensors may outlive `main`.
struct States {
  std::mutex mutex{};
  std::vector<DeviceState*> states{};
};

States& states() {
  static NoDestructor<States> all;
  return all.value;
}

}  // namespace

DeviceState::DeviceState(Driver const& driver, int index) : driver_(driver), index_(index) {
  constexpr auto const* operation = "open a GPU";
  RelaxedCaptureMode const mode(functions());
  int device = 0;
  check(driver_, functions().cuDeviceGet(&device, index), "cuDeviceGet", operation);
  check(driver_, functions().cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain", operation);
  max_pitch_ = as_size(attribute_or_zero(driver_, DeviceAttribute::max_pitch, device));
  registers_read_only_ = attribute_or_zero(driver_, DeviceAttribute::read_only_host_register_supported, device) != 0;
  if (attribute_or_zero(driver_, DeviceAttribute::memory_pools_supported, device) != 0) make_pool();
}

void DeviceState::make_pool() {
  auto const& f = functions();
  if (f.cuMemPoolCreate == nullptr || f.cuMemPoolTrimTo == nullptr || f.cuMemPoolSetAttribute == nullptr ||
      f.cuMemAllocFromPoolAsync == nullptr || f.cuMemFreeAsync == nullptr) {
    return;
  }
  api::PoolProperties const properties{.allocation = api::AllocationType::pinned,
                                       .handles = api::HandleType::none,
                                       .location = {.type = api::LocationType::device, .id = index_},
                                       .win32_security_attributes = nullptr,
                                       .max_size = 0,
                                       .usage = 0,
                                       .reserved = {}};
  if (auto const result = f.cuMemPoolCreate(&pool_, &properties); result != Result::success) {
    pool_ = nullptr;
    return log_event(LogLevel::warning, "a GPU has no memory pool, so each tensor allocates memory of its own",
                     {{"device", to_string(device())}, {"error", text_of(f, result)}});
  }
  auto keeps = pool_keeps;
  auto const result = f.cuMemPoolSetAttribute(pool_, api::PoolAttribute::release_threshold, &keeps);
  if (result == Result::success) return;
  log_event(LogLevel::warning, "the memory pool of a GPU gives unused memory back at each synchronization",
            {{"device", to_string(device())}, {"error", text_of(f, result)}});
}

DeviceState::~DeviceState() = default;

Kernels const& DeviceState::kernels() {
  std::call_once(kernels_loaded_, [this] { kernels_ = std::make_unique<Kernels>(*this); });
  return *kernels_;
}

CUevent_st* DeviceState::idle_event() {
  {
    std::lock_guard const lock(mutex_);
    if (!idle_events_.empty()) {
      auto* const event = idle_events_.back();
      idle_events_.pop_back();
      return event;
    }
  }
  CUevent_st* event = nullptr;
  check(driver_, functions().cuEventCreate(&event, api::event_disable_timing), "cuEventCreate", "record an event");
  return event;
}

Event DeviceState::record(CUstream_st* stream) {
  // An event may be recorded again although streams still wait for its previous record.
  std::shared_ptr<void> event(idle_event(), [this](void* handle) {
    if (open_driver() == nullptr) return;  // in a forked child a thread of the parent may hold the lock
    std::lock_guard const lock(mutex_);
    idle_events_.push_back(static_cast<CUevent_st*>(handle));
  });
  check(driver_, functions().cuEventRecord(static_cast<CUevent_st*>(event.get()), stream), "cuEventRecord",
        "record an event");
  return {device(), std::move(event)};
}

bool DeviceState::query(CUevent_st* event) const {
  auto const result = functions().cuEventQuery(event);
  if (result == Result::not_ready) return false;
  check(driver_, result, "cuEventQuery", "query an event");
  return true;
}

bool DeviceState::is_captured(CUstream_st* stream) const noexcept {
  auto status = api::CaptureStatus::none;
  // The default stream cannot be captured.
  return stream != nullptr && functions().cuStreamIsCapturing(stream, &status) == Result::success &&
         status != api::CaptureStatus::none;
}

void DeviceState::keep_alive(Stream const& stream, std::shared_ptr<void const> object) {
  auto* const key = native(stream);
  if (is_captured(key)) {
    std::lock_guard const lock(mutex_);
    held_by_captures_.push_back({.stream = stream, .object = std::move(object)});
    return;
  }
  auto event = record(key);
  std::lock_guard const lock(mutex_);
  auto found = std::find_if(held_.begin(), held_.end(), [key](auto const& one) { return one.stream == key; });
  if (found == held_.end()) found = held_.insert(held_.end(), {.stream = key});
  found->held.push_back({.event = std::move(event), .object = std::move(object)});
}

void DeviceState::keep_until(Event event, std::shared_ptr<void const> object) {
  if (event.native() == nullptr) return;
  std::lock_guard const lock(mutex_);
  held_until_.push_back({.event = std::move(event), .object = std::move(object)});
}

void DeviceState::follow_ended_captures() {
  std::vector<HeldByCapture> ended;
  {
    std::lock_guard const lock(mutex_);
    auto const first_ended = std::stable_partition(held_by_captures_.begin(), held_by_captures_.end(),
                                                   [this](auto const& one) { return is_captured(native(one.stream)); });
    std::move(first_ended, held_by_captures_.end(), std::back_inserter(ended));
    held_by_captures_.erase(first_ended, held_by_captures_.end());
  }
  for (auto& [stream, object] : ended) {
    try {
      keep_alive(stream, std::move(object));
    } catch (Error const&) {  // the device has failed, and does no more work
    }
  }
}

void DeviceState::drop_passed() {
  follow_ended_captures();
  std::vector<Held> dropped;  // destroyed after the lock: a destructor may come back here
  std::lock_guard const lock(mutex_);
  auto const query = [this](Held const& one) {
    return functions().cuEventQuery(static_cast<CUevent_st*>(one.event.native()));
  };
  // After a sticky error the GPU does no more work. Another error says nothing about the work.
  auto const is_over = [](Result result) { return result == Result::success || is_sticky(result); };
  for (auto& [stream, held] : held_) {
    while (!held.empty()) {
      auto const result = query(held.front());
      bool const is_captured_event = result == Result::captured_event;
      if (!is_captured_event && !is_over(result)) break;
      // A capture began just before the event was recorded, so the event never passes.
      if (is_captured_event) {
        held_by_captures_.push_back(
            {.stream = Stream::borrow(device(), stream), .object = std::move(held.front().object)});
      }
      dropped.push_back(std::move(held.front()));
      held.pop_front();
    }
  }
  std::erase_if(held_, [](auto const& one) { return one.held.empty(); });
  auto const passed = std::stable_partition(held_until_.begin(), held_until_.end(),
                                            [&](Held const& one) { return !is_over(query(one)); });
  std::move(passed, held_until_.end(), std::back_inserter(dropped));
  held_until_.erase(passed, held_until_.end());
}

void DeviceState::destroy_idle_events() noexcept {
  std::vector<CUevent_st*> events;
  {
    std::lock_guard const lock(mutex_);
    events.swap(idle_events_);
  }
  for (auto* const event : events)
    log_driver_error(functions(), functions().cuEventDestroy_v2(event), "cuEventDestroy");
}

DeviceState& device_state(Device device) {
  auto const& opened = driver();
  if (device.kind != Device::Kind::cuda || device.index < 0 || device.index >= opened.device_count) {
    ErrorInfo info{.operation = "open a GPU",
                   .message = "there is no such GPU",
                   .expected = "cuda:0 to cuda:" + std::to_string(opened.device_count - 1),
                   .got = to_string(device),
                   .hint = "CUDA_VISIBLE_DEVICES limits the GPUs of a process"};
    if (opened.device_count > 0) throw UsageError(std::move(info));
    info.expected = "a GPU";
    info.hint = "check nvidia-smi, the device nodes of a container, and CUDA_VISIBLE_DEVICES";
    throw UnavailableError(std::move(info));
  }
  auto& all = states();
  std::lock_guard const lock(all.mutex);
  if (all.states.empty()) all.states.resize(as_size(opened.device_count));
  auto& state = all.states[as_size(device.index)];
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed, see `States`
  if (state == nullptr) state = new DeviceState(opened, device.index);
  return *state;
}

DeviceState& any_device_state() {
  {
    auto& all = states();
    std::lock_guard const lock(all.mutex);
    static_cast<void>(driver());
    for (auto* const state : all.states) {
      if (state != nullptr) return *state;
    }
  }
  auto const own = default_device();
  return device_state(own.kind == Device::Kind::cuda ? own : Device::cuda(0));
}

RelaxedCaptureMode::RelaxedCaptureMode(api::Functions const& functions) noexcept : functions_(functions) { exchange(); }

RelaxedCaptureMode::~RelaxedCaptureMode() { exchange(); }

void RelaxedCaptureMode::exchange() noexcept {
  if (functions_.cuThreadExchangeStreamCaptureMode == nullptr) return;
  log_driver_error(functions_, functions_.cuThreadExchangeStreamCaptureMode(&other_),
                   "cuThreadExchangeStreamCaptureMode");
}

ContextScope::ContextScope(DeviceState const& state) : state_(state), mode_(state.functions()) {
  CUctx_st* current = nullptr;
  auto const& f = state.functions();
  if (f.cuCtxGetCurrent(&current) == Result::success && current == state.context()) return;
  check(state.driver(), f.cuCtxPushCurrent_v2(state.context()), "cuCtxPushCurrent", "use a GPU");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  if (!pushed_) return;
  CUctx_st* popped = nullptr;
  log_driver_error(state_.functions(), state_.functions().cuCtxPopCurrent_v2(&popped), "cuCtxPopCurrent");
}

}  // namespace crossrank::cuda
