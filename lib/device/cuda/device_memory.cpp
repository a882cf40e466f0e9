#include "lib/device/cuda/device_memory.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <crossrank/cuda.hpp>

#include "lib/core/log.hpp"
#include "lib/device/cuda/capture.hpp"
#include "lib/device/cuda/memory_block.hpp"
#include "lib/device/holders.hpp"

namespace crossrank::cuda {
namespace {

/// Device memory that tensors view. Frees the block after all streams that have used it.
class DeviceStorage final : public spi::Storage {
 public:
  DeviceStorage(Device device, std::unique_ptr<MemoryBlock> block) : device_(device), block_(std::move(block)) {}
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
    if (std::find(others_.begin(), others_.end(), stream) != others_.end()) return true;
    if (others_.size() >= most_others_) drop_idle_streams();
    others_.push_back(stream);
    return true;
  }

 private:
  /// Forgets the streams whose work has ended. Otherwise a tensor that lives long would keep all streams that ever used
  /// it. A stream that uses the tensor again is added again.
  void drop_idle_streams() {
    std::erase_if(others_, [](Stream const& stream) {
      auto& used = device_state(stream.device());
      ContextScope const scope(used);
      // The query of a stream in a capture would end the capture.
      return !used.is_captured(native(stream)) &&
             used.functions().cuStreamQuery(native(stream)) == api::Result::success;
    });
    most_others_ = std::max(least_others, 2 * others_.size());
  }

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
      state.keep_alive(home_stream, std::shared_ptr<MemoryBlock>(std::move(block_)));
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
  std::unique_ptr<MemoryBlock> block_;
  Holders holders_{};
  static constexpr std::size_t least_others = 8;
  std::mutex mutex_{};
  std::vector<Stream> others_{};            ///< besides the block's stream
  std::size_t most_others_ = least_others;  ///< how many streams are kept before idle ones are dropped
};

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

void trim(Device device) {
  auto& state = device_state(device);
  ContextScope const scope(state);
  state.drop_passed();
  state.destroy_idle_events();
  if (state.pool() == nullptr) return;
  check(state.driver(), state.functions().cuMemPoolTrimTo(state.pool(), 0), "cuMemPoolTrimTo", "cuda.trim");
}

}  // namespace crossrank::cuda
