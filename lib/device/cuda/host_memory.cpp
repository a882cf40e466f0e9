#include "lib/device/cuda/host_memory.hpp"

#include <string>
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank::cuda {
namespace {

using api::Result;

/// Host memory of cuMemHostAlloc. cuMemFreeHost waits for copies that are under way.
class PinnedStorage final : public spi::Storage {
 public:
  PinnedStorage(DeviceState const* state, void* data, std::size_t bytes) : state_(state), data_(data), bytes_(bytes) {}
  ~PinnedStorage() override {
    if (data_ == nullptr || open_driver() == nullptr) return;
    auto const& f = state_->functions();
    try {
      ContextScope const scope(*state_);
      log_driver_error(f, f.cuMemFreeHost(data_), "cuMemFreeHost");
    } catch (Error const&) {  // the driver has shut down, and the memory with it
    }
  }
  PinnedStorage(PinnedStorage const&) = delete;
  PinnedStorage& operator=(PinnedStorage const&) = delete;
  [[nodiscard]] std::byte* data() noexcept override { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_; }
  [[nodiscard]] bool is_pinned() const noexcept override { return true; }

 private:
  DeviceState const* state_;
  void* data_;
  std::size_t bytes_;
};

/// Undoes a registration.
class Registration {
 public:
  Registration(DeviceState const& state, void* data) : state_(state), data_(data) {}
  ~Registration() {
    if (open_driver() == nullptr) return;
    auto const& f = state_.functions();
    try {
      ContextScope const scope(state_);
      log_driver_error(f, f.cuMemHostUnregister(data_), "cuMemHostUnregister");
    } catch (Error const&) {  // the driver has shut down, and the registration with it
    }
  }
  Registration(Registration const&) = delete;
  Registration& operator=(Registration const&) = delete;

 private:
  DeviceState const& state_;
  void* data_;
};

}  // namespace

std::shared_ptr<spi::Storage> allocate_pinned_memory(std::size_t bytes) {
  if (bytes == 0) return std::make_shared<PinnedStorage>(nullptr, nullptr, 0);
  auto const& state = any_device_state();
  ContextScope const scope(state);
  void* data = nullptr;
  auto const result = state.functions().cuMemHostAlloc(&data, bytes, api::host_alloc_portable);
  if (result == Result::out_of_memory) {
    throw UnavailableError({.operation = "allocate pinned memory",
                            .message = "not enough memory",
                            .got = std::to_string(bytes) + " bytes requested",
                            .hint = "the limit of locked memory (ulimit -l) or of the machine is reached"});
  }
  check(state.driver(), result, "cuMemHostAlloc", "allocate pinned memory");
  return std::make_shared<PinnedStorage>(&state, data, bytes);
}

std::shared_ptr<void> register_host_memory(std::span<std::byte const> bytes, spi::DeviceProvider::HostAccess access) {
  auto const& state = any_device_state();
  ContextScope const scope(state);
  auto flags = api::host_register_portable;
  if (access == spi::DeviceProvider::HostAccess::read_only) {
    if (!state.registers_read_only()) {
      throw UnavailableError({.operation = "register host memory",
                              .message = "this GPU cannot register memory that is mapped read-only",
                              .resource = to_string(state.device())});
    }
    flags |= api::host_register_read_only;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the flags say whether the GPU may write
  auto* const data = const_cast<std::byte*>(bytes.data());
  auto const result = state.functions().cuMemHostRegister_v2(data, bytes.size(), flags);
  if (result == Result::host_memory_already_registered) {
    throw UsageError({.operation = "register host memory",
                      .message = "the memory is registered already",
                      .got = std::to_string(bytes.size()) + " bytes",
                      .hint = "keep the first registration for as long as the mapping lives"});
  }
  if (result == Result::out_of_memory) {
    throw UnavailableError({.operation = "register host memory",
                            .message = "the system does not lock so much memory",
                            .got = std::to_string(bytes.size()) + " bytes requested",
                            .hint = "raise the limit of locked memory (ulimit -l)"});
  }
  check(state.driver(), result, "cuMemHostRegister", "register host memory");
  return std::make_shared<Registration>(state, data);
}

bool is_page_locked_memory(DeviceState const& state, std::byte const* data) {
  ContextScope const scope(state);
  unsigned type = 0;
  // The driver fails for memory that it has neither allocated nor registered.
  return state.functions().cuPointerGetAttribute(&type, api::PointerAttribute::memory_type,
                                                 api::device_address(data)) == Result::success;
}

}  // namespace crossrank::cuda
