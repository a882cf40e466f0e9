#include "lib/device/cuda/memory_block.hpp"

#include <mutex>
#include <string>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/core/log.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/device/cuda/capture.hpp"

namespace crossrank::cuda {
namespace {

using api::DevicePointer;
using api::Result;

/// Memory of the pool.
class PoolBlock final : public MemoryBlock {
 public:
  using MemoryBlock::MemoryBlock;
  ~PoolBlock() override {
    auto const& f = state().functions();
    log_driver_error(f, f.cuMemFreeAsync(api::device_address(data()), native(stream())), "cuMemFreeAsync");
  }
};

/// Memory of cuMemAlloc. cuMemFree may free it before the work on streams has ended.
class PlainBlock final : public MemoryBlock {
 public:
  using MemoryBlock::MemoryBlock;
  ~PlainBlock() override {
    if (open_driver() == nullptr) return;
    auto const& f = state().functions();
    log_driver_error(f, f.cuMemFree_v2(api::device_address(data())), "cuMemFree");
  }
  [[nodiscard]] bool frees_in_order() const noexcept override { return false; }
};

/// Memory of the plugged allocator.
class PluggableBlock final : public MemoryBlock {
 public:
  PluggableBlock(DeviceState& state, Stream stream, void* data, std::size_t bytes,
                 std::shared_ptr<Allocator const> allocator)
      : MemoryBlock(state, std::move(stream), data, bytes), allocator_(std::move(allocator)) {}
  ~PluggableBlock() override {
    try {
      allocator_->free(data(), bytes(), state().device().index, native(stream()));
    } catch (...) {
      log_event(LogLevel::error, "the plugged allocator of GPU memory threw from its free function");
    }
  }

 private:
  std::shared_ptr<Allocator const> allocator_;
};

struct PluggableAllocator {
  std::mutex mutex{};
  std::shared_ptr<Allocator const> allocator{};
};

PluggableAllocator& plugged() {
  static NoDestructor<PluggableAllocator> one;  // tensors may outlive `main`
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
  return reinterpret_cast<void*>(data);
}

}  // namespace

std::unique_ptr<MemoryBlock> allocate_block(DeviceState& state, Stream const& stream,
                                            spi::DeviceAllocation const& request) {
  auto const& f = state.functions();
  auto const bytes = request.bytes;
  if (auto const allocator = current_allocator(); allocator && !request.shareable) {
    auto* const data = allocator->allocate(bytes, state.device().index, native(stream));
    if (data == nullptr) refuse_full(state, bytes, "the plugged allocator");
    return std::make_unique<PluggableBlock>(state, stream, data, bytes, allocator);
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

}  // namespace crossrank::cuda
