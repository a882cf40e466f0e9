#include "lib/device/cuda/device_memory.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/core/log.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/device/borrowed_memory.hpp"
#include "lib/device/cuda/capture.hpp"
#include "lib/device/holders.hpp"

namespace crossrank::cuda {
namespace {

using api::DevicePointer;
using api::PointerAttribute;
using api::Result;

void* pointer_of(DevicePointer data) noexcept { return reinterpret_cast<void*>(data); }

/// Memory that was allocated, of one of the three sources.
class Block {
 public:
  Block(DeviceState& state, Stream stream, void* data, std::size_t bytes)
      : state_(state), stream_(std::move(stream)), data_(data), bytes_(bytes) {}
  virtual ~Block() = default;
  Block(Block const&) = delete;
  Block& operator=(Block const&) = delete;

  [[nodiscard]] DeviceState& state() const noexcept { return state_; }
  [[nodiscard]] Stream const& stream() const noexcept { return stream_; }
  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Returns whether the memory is freed in the order of the stream, so that the host need not wait before.
  [[nodiscard]] virtual bool frees_in_order() const noexcept { return true; }

 private:
  DeviceState& state_;
  Stream stream_;
  void* data_;
  std::size_t bytes_;
};

/// Memory of the pool.
class PoolBlock final : public Block {
 public:
  using Block::Block;
  ~PoolBlock() override {
    auto const& f = state().functions();
    log_driver_error(f, f.cuMemFreeAsync(api::device_address(data()), native(stream())), "cuMemFreeAsync");
  }
};

/// Memory of cuMemAlloc. cuMemFree may free it before the work on streams has ended.
class PlainBlock final : public Block {
 public:
  using Block::Block;
  ~PlainBlock() override {
    if (open_driver() == nullptr) return;
    auto const& f = state().functions();
    log_driver_error(f, f.cuMemFree_v2(api::device_address(data())), "cuMemFree");
  }
  [[nodiscard]] bool frees_in_order() const noexcept override { return false; }
};

/// Memory of the plugged allocator.
class PluggedBlock final : public Block {
 public:
  PluggedBlock(DeviceState& state, Stream stream, void* data, std::size_t bytes,
               std::shared_ptr<Allocator const> allocator)
      : Block(state, std::move(stream), data, bytes), allocator_(std::move(allocator)) {}
  ~PluggedBlock() override {
    try {
      allocator_->free(data(), bytes(), state().device().index, native(stream()));
    } catch (...) {
      log_event(LogLevel::error, "the plugged allocator of GPU memory threw from its free function");
    }
  }

 private:
  std::shared_ptr<Allocator const> allocator_;
};

/// Device memory that tensors view. Frees the block after all streams that have used it.
class DeviceStorage final : public spi::Storage {
 public:
  DeviceStorage(Device device, std::unique_ptr<Block> block) : device_(device), block_(std::move(block)) {}
  ~DeviceStorage() override {
    if (!block_) return;
    if (open_driver() == nullptr) {
      static_cast<void>(block_.release());  // a child after fork: the memory is the parent's
      return;
    }
    try {
      free_in_order();
    } catch (std::exception const& error) {
      log_event(LogLevel::warning, "GPU memory could not be freed in the order of its streams",
                {{"what", error.what()}});
    }
  }
  DeviceStorage(DeviceStorage const&) = delete;
  DeviceStorage& operator=(DeviceStorage const&) = delete;

  [[nodiscard]] std::byte* data() noexcept override { return block_ ? block_->data() : nullptr; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return block_ ? block_->bytes() : 0; }
  [[nodiscard]] Device device() const noexcept override { return device_; }
  [[nodiscard]] std::string frozen_by() const override { return holders_.describe(); }
  [[nodiscard]] bool hold(std::function<std::string()> who) override {
    holders_.add(std::move(who));
    return true;
  }
  [[nodiscard]] bool used_on(Stream const& stream) override {
    if (Capture::of(stream) != nullptr) return false;  // each replay uses the bytes, so the graph keeps the storage
    if (!block_ || stream == block_->stream()) return true;
    std::lock_guard const lock(mutex_);
    if (std::find(others_.begin(), others_.end(), stream) == others_.end()) others_.push_back(stream);
    return true;
  }

 private:
  /// Lets the block's stream wait for the others, and frees the block there.
  void free_in_order() {
    if (auto* const capture = capture_that_uses_it()) return capture->keep(moved());
    if (auto const stream = captured_stream()) {
      auto& used = device_state(stream->device());
      ContextScope const scope(used);
      return used.keep_alive(*stream, moved());
    }
    auto& state = block_->state();
    auto const& f = state.functions();
    auto const home_stream = block_->stream();
    auto* const home = native(home_stream);
    for (auto const& other : others_) {
      auto& used = device_state(other.device());
      Event event;
      {
        ContextScope const scope(used);
        event = used.record(native(other));
      }
      ContextScope const scope(state);
      check(state.driver(), f.cuStreamWaitEvent(home, native(event), 0), "cuStreamWaitEvent", "free GPU memory");
    }
    ContextScope const scope(state);
    if (block_->frees_in_order()) {
      block_.reset();
    } else {
      state.keep_alive(home_stream, std::shared_ptr<Block>(std::move(block_)));
      state.drop_passed();
    }
  }

  /// Returns the capture whose work uses the memory, or null.
  [[nodiscard]] Capture* capture_that_uses_it() const {
    if (auto* const capture = Capture::of(block_->stream())) return capture;
    for (auto const& other : others_) {
      if (auto* const capture = Capture::of(other)) return capture;
    }
    return nullptr;
  }

  /// Returns a stream that another library or thread captures and that has used the memory. An event that is recorded
  /// there now would belong to the graph.
  [[nodiscard]] std::optional<Stream> captured_stream() const {
    auto const is_captured = [](Stream const& stream) {
      if (stream.native() == nullptr) return false;
      auto const& used = device_state(stream.device());
      ContextScope const scope(used);
      return used.is_captured(native(stream));
    };
    if (is_captured(block_->stream())) return block_->stream();
    auto const found = std::find_if(others_.begin(), others_.end(), is_captured);
    return found == others_.end() ? std::nullopt : std::optional(*found);
  }

  /// Moves the block to a storage that ends later.
  [[nodiscard]] std::shared_ptr<DeviceStorage> moved() {
    auto later = std::make_shared<DeviceStorage>(device_, std::move(block_));
    later->others_ = std::move(others_);
    return later;
  }

  Device device_;
  std::unique_ptr<Block> block_;
  Holders holders_{};
  std::mutex mutex_{};
  std::vector<Stream> others_{};
};

/// Device memory of the caller.
class BorrowedDeviceStorage final : public spi::Storage {
 public:
  BorrowedDeviceStorage(Device device, void* data, std::size_t bytes, std::function<void(void*)> deleter)
      : device_(device), memory_(data, std::move(deleter)), bytes_(bytes) {}
  [[nodiscard]] std::byte* data() noexcept override { return memory_.data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_; }
  [[nodiscard]] Device device() const noexcept override { return device_; }
  [[nodiscard]] std::string frozen_by() const override { return holders_.describe(); }
  [[nodiscard]] bool hold(std::function<std::string()> who) override {
    holders_.add(std::move(who));
    return true;
  }

 private:
  Device device_;
  Holders holders_{};
  BorrowedMemory memory_;
  std::size_t bytes_;
};

struct PluggedAllocator {
  std::mutex mutex{};
  std::shared_ptr<Allocator const> allocator{};
};

PluggedAllocator& plugged() {
  static NoDestructor<PluggedAllocator> one;  // tensors may outlive `main`
  return one.value;
}

std::shared_ptr<Allocator const> current_allocator() {
  auto& one = plugged();
  std::lock_guard const lock(one.mutex);
  return one.allocator;
}

[[noreturn]] void refuse_full(DeviceState const& state, std::size_t bytes, char const* source) {
  std::size_t free = 0;
  std::size_t total = 0;
  auto const known = state.functions().cuMemGetInfo_v2(&free, &total) == Result::success;
  throw UnavailableError(
      {.operation = "allocate GPU memory",
       .message = "not enough memory",
       .expected = known ? std::to_string(free) + " of " + std::to_string(total) + " bytes are free" : "",
       .got = std::to_string(bytes) + " bytes requested",
       .resource = to_string(state.device()) + ", " + source,
       .hint = "use smaller tensors, more GPUs, or end other programs on this GPU (nvidia-smi lists them)"});
}

/// Calls `allocate`, and once more after unused memory was given back.
template <class Allocate>
void* allocate_twice(DeviceState& state, std::size_t bytes, char const* function, Allocate allocate) {
  DevicePointer data = 0;
  auto result = allocate(&data);
  if (result == Result::out_of_memory) {
    state.drop_passed();
    if (state.pool() != nullptr) static_cast<void>(state.functions().cuMemPoolTrimTo(state.pool(), 0));
    result = allocate(&data);
  }
  if (result == Result::out_of_memory) refuse_full(state, bytes, function);
  check(state.driver(), result, function, "allocate GPU memory");
  return pointer_of(data);
}

std::unique_ptr<Block> allocate_block(DeviceState& state, Stream const& stream, spi::DeviceAllocation const& request) {
  auto const& f = state.functions();
  auto const bytes = request.bytes;
  if (auto const allocator = current_allocator(); allocator && !request.shareable) {
    auto* const data = allocator->allocate(bytes, state.device().index, native(stream));
    if (data == nullptr) refuse_full(state, bytes, "the plugged allocator");
    return std::make_unique<PluggedBlock>(state, stream, data, bytes, allocator);
  }
  // The pool's memory would belong to a captured graph, which allocates it anew with each replay.
  bool const is_captured = Capture::of(stream) != nullptr;
  if (state.pool() != nullptr && !request.shareable && !is_captured) {
    auto* const data = allocate_twice(state, bytes, "cuMemAllocFromPoolAsync", [&](DevicePointer* out) {
      return f.cuMemAllocFromPoolAsync(out, bytes, state.pool(), native(stream));
    });
    return std::make_unique<PoolBlock>(state, stream, data, bytes);
  }
  auto* const data =
      allocate_twice(state, bytes, "cuMemAlloc", [&](DevicePointer* out) { return f.cuMemAlloc_v2(out, bytes); });
  return std::make_unique<PlainBlock>(state, stream, data, bytes);
}

[[noreturn]] void refuse_blob(Device device, char const* message, std::string got, char const* hint) {
  throw UsageError({.operation = "Tensor.from_blob",
                    .message = message,
                    .expected = "memory of " + to_string(device),
                    .got = std::move(got),
                    .hint = hint});
}

/// Returns whether the address is memory of cuMemMap, and neither of cuMemAlloc nor of a pool.
bool is_mapped(DeviceState const& state, DevicePointer at) {
  auto const& f = state.functions();
  unsigned is_allocation = 0;
  CUmemPoolHandle_st* pool = nullptr;
  if (f.cuPointerGetAttribute(&is_allocation, PointerAttribute::is_legacy_ipc_capable, at) != Result::success)
    return false;
  // A driver that does not know the attribute has no pools.
  static_cast<void>(f.cuPointerGetAttribute(&pool, PointerAttribute::pool_handle, at));
  return is_allocation == 0 && pool == nullptr;
}

/// Returns how many bytes are left from `at` to the end of the allocation. Mapped memory may continue in the allocation
/// at the next address, as PyTorch's expandable segments do: it is followed until `wanted` bytes are found.
std::size_t bytes_left(DeviceState const& state, DevicePointer at, std::size_t wanted) {
  auto const& f = state.functions();
  DevicePointer base = 0;
  std::size_t size = 0;
  check(state.driver(), f.cuMemGetAddressRange_v2(&base, &size, at), "cuMemGetAddressRange", "Tensor.from_blob");
  auto known = size - (at - base);
  while (known < wanted && is_mapped(state, base)) {
    auto const next = at + known;
    int ordinal = -1;
    if (f.cuMemGetAddressRange_v2(&base, &size, next) != Result::success || base != next || size == 0) break;
    if (f.cuPointerGetAttribute(&ordinal, PointerAttribute::device_ordinal, next) != Result::success) break;
    if (ordinal != state.device().index || !is_mapped(state, next)) break;
    known += size;
  }
  return known;
}

void require_device_memory(DeviceState const& state, void* data, std::size_t bytes) {
  auto const& f = state.functions();
  auto const at = api::device_address(data);
  unsigned type = 0;
  unsigned managed = 0;
  int ordinal = 0;
  if (f.cuPointerGetAttribute(&type, PointerAttribute::memory_type, at) != Result::success)
    refuse_blob(state.device(), "the pointer is not known to CUDA", "host memory",
                "leave the device away for host memory, or copy it with to(device)");
  static_cast<void>(f.cuPointerGetAttribute(&managed, PointerAttribute::is_managed, at));
  if (type != static_cast<unsigned>(api::MemoryType::device) && managed == 0)
    refuse_blob(state.device(), "the pointer is pinned host memory", "host memory",
                "leave the device away for host memory, or copy it with to(device)");
  if (managed == 0 && f.cuPointerGetAttribute(&ordinal, PointerAttribute::device_ordinal, at) == Result::success &&
      ordinal != state.device().index) {
    refuse_blob(state.device(), "the memory is on another GPU", to_string(Device::cuda(ordinal)),
                "pass the device that holds the memory");
  }
  auto const left = bytes_left(state, at, bytes);
  if (bytes > left)
    refuse_blob(state.device(), "the tensor is longer than the memory",
                std::to_string(left) + " bytes up to the end of the allocation, " + std::to_string(bytes) + " needed",
                "check shape and dtype");
}

}  // namespace

std::shared_ptr<spi::Storage> allocate_device_memory(Stream const& stream, spi::DeviceAllocation const& request) {
  auto& state = device_state(stream.device());
  if (request.bytes == 0) return std::make_shared<DeviceStorage>(stream.device(), nullptr);
  require_no_foreign_capture(stream, "allocate GPU memory");
  ContextScope const scope(state);
  state.drop_passed();
  auto storage = std::make_shared<DeviceStorage>(stream.device(), allocate_block(state, stream, request));
  if (auto* const capture = Capture::of(stream)) capture->keep(storage);
  return storage;
}

std::shared_ptr<spi::Storage> borrow_device_memory(DeviceState& state, void* data, std::size_t bytes,
                                                   std::function<void(void*)> deleter) {
  if (bytes > 0) {
    ContextScope const scope(state);
    require_device_memory(state, data, bytes);
  }
  return std::make_shared<BorrowedDeviceStorage>(state.device(), data, bytes, std::move(deleter));
}

void set_allocator(Allocator allocator) {
  if (static_cast<bool>(allocator.allocate) != static_cast<bool>(allocator.free)) {
    throw UsageError({.operation = "cuda.set_allocator",
                      .message = "only one of the two functions is set",
                      .expected = "both, or none to restore the library's pool"});
  }
  auto next = allocator.allocate ? std::make_shared<Allocator const>(std::move(allocator)) : nullptr;
  auto& one = plugged();
  std::lock_guard const lock(one.mutex);
  one.allocator = std::move(next);
}

void trim(Device device) {
  auto& state = device_state(device);
  ContextScope const scope(state);
  state.drop_passed();
  state.destroy_idle_events();
  if (state.pool() == nullptr) return;
  check(state.driver(), state.functions().cuMemPoolTrimTo(state.pool(), 0), "cuMemPoolTrimTo", "cuda.trim");
}

}  // namespace crossrank::cuda
