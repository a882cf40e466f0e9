#include "lib/device/cuda/shared_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/core/log.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/device/cuda/capture.hpp"
#include "lib/device/cuda/driver_errors.hpp"
#include "lib/platform/random.hpp"

namespace crossrank::cuda {
namespace {

using api::DevicePointer;
using api::Result;

constexpr auto const* open_operation = "open GPU memory of another process";

/// What is in `SharedDeviceMemory::handle`.
struct Handle {
  api::IpcMemoryHandle allocation;
  api::Uuid gpu;
  std::uint64_t process;  ///< random; a process cannot open its own handles
  std::uint64_t address;  ///< of the first byte, in the process that shares it
  std::uint64_t offset;   ///< of the first byte, in the allocation
};
static_assert(sizeof(Handle) == std::tuple_size_v<decltype(spi::SharedDeviceMemory::handle)>);

std::uint64_t own_process() {
  static auto const number = platform::random_number("share GPU memory");
  return number;
}

api::Uuid uuid_of(Driver const& driver, int gpu) {
  api::Uuid uuid{};
  int handle = 0;
  check(driver, driver.functions.cuDeviceGet(&handle, gpu), "cuDeviceGet", open_operation);
  check(driver, driver.functions.cuDeviceGetUuid_v2(&uuid, handle), "cuDeviceGetUuid", open_operation);
  return uuid;
}

bool can_share(Driver const& driver) {
  auto const& f = driver.functions;
  return f.cuIpcGetMemHandle != nullptr && f.cuIpcOpenMemHandle_v2 != nullptr && f.cuIpcCloseMemHandle != nullptr &&
         f.cuDeviceGetUuid_v2 != nullptr;
}

/// The allocations of other processes that this one has open.
struct OpenAllocations {
  struct One {
    DevicePointer base = 0;
    int users = 0;
  };
  std::mutex mutex{};
  std::map<std::string, One> by_handle{};
};

OpenAllocations& open_allocations() {
  static NoDestructor<OpenAllocations> all;  // tensors may outlive statics
  return all.value;
}

/// One use of an allocation of another process.
class OpenAllocation {
 public:
  OpenAllocation(DeviceState& state, api::IpcMemoryHandle const& handle, std::shared_ptr<void const> lease)
      : state_(state), key_(handle.reserved, sizeof handle.reserved), lease_(std::move(lease)) {
    auto& all = open_allocations();
    std::lock_guard const lock(all.mutex);
    auto& one = all.by_handle[key_];
    if (one.users == 0) {
      auto const result = state.functions().cuIpcOpenMemHandle_v2(&one.base, handle, api::ipc_lazy_peer_access);
      if (result != Result::success) all.by_handle.erase(key_);
      check(state.driver(), result, "cuIpcOpenMemHandle", open_operation);
    }
    ++one.users;
    base_ = one.base;
  }
  ~OpenAllocation() {
    if (open_driver() == nullptr) return;
    auto& all = open_allocations();
    std::lock_guard const lock(all.mutex);
    auto const found = all.by_handle.find(key_);
    if (--found->second.users > 0) return;
    all.by_handle.erase(found);
    try {
      ContextScope const scope(state_);
      auto const& f = state_.functions();
      log_driver_error(f, f.cuIpcCloseMemHandle(base_), "cuIpcCloseMemHandle");
    } catch (Error const&) {  // the driver has shut down
    }
  }
  OpenAllocation(OpenAllocation const&) = delete;
  OpenAllocation& operator=(OpenAllocation const&) = delete;

  [[nodiscard]] DevicePointer base() const noexcept { return base_; }

 private:
  DeviceState& state_;
  std::string key_;
  std::shared_ptr<void const> lease_;  ///< ends after the allocation is closed
  DevicePointer base_ = 0;
};

/// Memory of another process, or of another thread of this one. Closes it when all streams that use it have passed.
class OpenedStorage final : public spi::Storage {
 public:
  /// `owner` ends with the use of the memory.
  OpenedStorage(DeviceState& state, std::byte* data, std::size_t bytes, std::shared_ptr<void const> owner)
      : state_(state), data_(data), bytes_(bytes), owner_(std::move(owner)) {}
  ~OpenedStorage() override {
    if (open_driver() == nullptr) return;
    try {
      end_in_order();
    } catch (std::exception const& e) {
      log_event(LogLevel::warning, "GPU memory of another process could not be closed in the order of its streams",
                {{"what", e.what()}});
    }
  }
  OpenedStorage(OpenedStorage const&) = delete;
  OpenedStorage& operator=(OpenedStorage const&) = delete;

  [[nodiscard]] std::byte* data() noexcept override { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_; }
  [[nodiscard]] Device device() const noexcept override { return state_.device(); }
  [[nodiscard]] bool used_on(Stream const& stream) override {
    if (Capture::of(stream) != nullptr) return false;  // the graph keeps the storage
    std::lock_guard const lock(mutex_);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
    return true;
  }

 private:
  void end_in_order() {
    for (auto const& stream : streams_) {
      auto& state = device_state(stream.device());
      ContextScope const scope(state);
      if (!state.is_captured(native(stream))) {  // a query would invalidate the capture
        auto const result = state.functions().cuStreamQuery(native(stream));
        // Another error says nothing about the work of the stream.
        if (result == Result::success || is_sticky(result)) continue;
      }
      state.keep_alive(stream, owner_);
    }
  }

  DeviceState& state_;
  std::byte* data_;
  std::size_t bytes_;
  std::shared_ptr<void const> owner_;
  std::mutex mutex_{};
  std::vector<Stream> streams_{};
};

DeviceState& find_gpu(api::Uuid const& uuid) {
  auto const& opened = driver();
  for (int index = 0; index < opened.device_count; ++index) {
    auto const other = uuid_of(opened, index);
    if (std::memcmp(other.bytes, uuid.bytes, sizeof uuid.bytes) == 0) return device_state(Device::cuda(index));
  }
  throw UnavailableError(
      {.operation = open_operation,
       .message = "this process does not see the GPU that holds the memory",
       .hint = "let CUDA_VISIBLE_DEVICES name the GPUs of all ranks of the host, or leave in_place out"});
}

}  // namespace

std::optional<spi::SharedDeviceMemory> share_device_memory(DeviceState& state, std::byte const* data,
                                                           std::size_t bytes) {
  if (!can_share(state.driver())) return {};
  ContextScope const scope(state);
  auto const& f = state.functions();
  auto const at = api::device_address(data);
  DevicePointer base = 0;
  std::size_t size = 0;
  check(state.driver(), f.cuMemGetAddressRange_v2(&base, &size, at), "cuMemGetAddressRange", "share GPU memory");
  Handle handle{};
  // Refused for memory of pools and for mapped memory.
  if (f.cuIpcGetMemHandle(&handle.allocation, base) != Result::success) return {};
  handle.gpu = uuid_of(state.driver(), state.device().index);
  handle.process = own_process();
  handle.address = at;
  handle.offset = at - base;
  spi::SharedDeviceMemory shared{.bytes = bytes, .kind = state.device().kind};
  std::memcpy(shared.handle.data(), &handle, sizeof handle);
  return shared;
}

std::shared_ptr<spi::Storage> open_shared_device_memory(spi::SharedDeviceMemory const& shared,
                                                        std::shared_ptr<void const> lease) {
  Handle handle{};
  std::memcpy(&handle, shared.handle.data(), sizeof handle);
  auto& opened = driver();
  if (!can_share(opened)) {
    throw UnavailableError({.operation = open_operation,
                            .message = "the driver cannot share memory",
                            .resource = opened.path,
                            .hint = "install a newer NVIDIA driver, or leave in_place out"});
  }
  auto& state = find_gpu(handle.gpu);
  ContextScope const scope(state);
  if (handle.process == own_process()) {
    auto* const data = reinterpret_cast<std::byte*>(handle.address);
    return std::make_shared<OpenedStorage>(state, data, shared.bytes, std::move(lease));
  }
  auto allocation = std::make_shared<OpenAllocation>(state, handle.allocation, std::move(lease));
  auto* const data = reinterpret_cast<std::byte*>(allocation->base() + handle.offset);
  return std::make_shared<OpenedStorage>(state, data, shared.bytes, std::move(allocation));
}

}  // namespace crossrank::cuda
