#include "lib/device/cuda/cuda_provider.hpp"

#include <optional>
#include <utility>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/core/no_destructor.hpp"
#include "lib/device/cuda/borrowed_device_memory.hpp"
#include "lib/device/cuda/capture.hpp"
#include "lib/device/cuda/device_memory.hpp"
#include "lib/device/cuda/device_state.hpp"
#include "lib/device/cuda/host_memory.hpp"
#include "lib/device/cuda/kernels/kernels.hpp"
#include "lib/device/cuda/shared_memory.hpp"

namespace crossrank::cuda {
namespace {

using api::DevicePointer;
using api::Result;

bool on_gpu(Device device) noexcept { return device.kind == Device::Kind::cuda; }

/// Copies one run.
void copy_run(DeviceState const& state, CUstream_st* stream, spi::DeviceCopy const& copy, std::byte* to,
              std::byte const* from) {
  auto const& f = state.functions();
  constexpr auto const* operation = "copy on a GPU";
  auto const bytes = copy.run_bytes;
  if (!on_gpu(copy.from_device)) {
    check(state.driver(), f.cuMemcpyHtoDAsync_v2(api::device_address(to), from, bytes, stream), "cuMemcpyHtoDAsync",
          operation);
  } else if (!on_gpu(copy.to_device)) {
    check(state.driver(), f.cuMemcpyDtoHAsync_v2(to, api::device_address(from), bytes, stream), "cuMemcpyDtoHAsync",
          operation);
  } else if (copy.to_device == copy.from_device) {
    check(state.driver(), f.cuMemcpyDtoDAsync_v2(api::device_address(to), api::device_address(from), bytes, stream),
          "cuMemcpyDtoDAsync", operation);
  } else {
    auto* const source = device_state(copy.from_device).context();
    auto* const target = device_state(copy.to_device).context();
    check(state.driver(),
          f.cuMemcpyPeerAsync(api::device_address(to), target, api::device_address(from), source, bytes, stream),
          "cuMemcpyPeerAsync", operation);
  }
}

/// Copies all runs with one call.
void copy_rows(DeviceState const& state, CUstream_st* stream, spi::DeviceCopy const& copy) {
  bool const from_gpu = on_gpu(copy.from_device);
  bool const to_gpu = on_gpu(copy.to_device);
  api::Copy2d rows{};
  rows.from_type = from_gpu ? api::MemoryType::device : api::MemoryType::host;
  if (from_gpu) {
    rows.from_device = api::device_address(copy.from);
  } else {
    rows.from_host = copy.from;
  }
  rows.from_pitch = copy.from_stride;
  rows.to_type = to_gpu ? api::MemoryType::device : api::MemoryType::host;
  if (to_gpu) {
    rows.to_device = api::device_address(copy.to);
  } else {
    rows.to_host = copy.to;
  }
  rows.to_pitch = copy.to_stride;
  rows.width = copy.run_bytes;
  rows.height = copy.runs;
  check(state.driver(), state.functions().cuMemcpy2DAsync_v2(&rows, stream), "cuMemcpy2DAsync", "copy on a GPU");
}

class CudaProvider final : public spi::DeviceProvider {
 public:
  [[nodiscard]] int device_count() override { return cuda::device_count(); }

  [[nodiscard]] std::shared_ptr<spi::Storage> allocate(Stream const& stream,
                                                       spi::DeviceAllocation const& request) override {
    return allocate_device_memory(stream, request);
  }
  [[nodiscard]] std::shared_ptr<spi::Storage> borrow(Device device, void* data, std::size_t bytes,
                                                     std::function<void(void*)> deleter) override {
    return borrow_device_memory(device_state(device), data, bytes, std::move(deleter));
  }
  [[nodiscard]] std::shared_ptr<spi::Storage> allocate_pinned(std::size_t bytes) override {
    return allocate_pinned_memory(bytes);
  }
  [[nodiscard]] std::shared_ptr<void> register_host(std::span<std::byte const> bytes, HostAccess access) override {
    return register_host_memory(bytes, access);
  }
  [[nodiscard]] bool is_page_locked(Device device, std::byte const* data) override {
    return is_page_locked_memory(device_state(device), data);
  }

  [[nodiscard]] std::optional<spi::SharedDeviceMemory> share(Device device, std::byte const* data,
                                                             std::size_t bytes) override {
    return share_device_memory(device_state(device), data, bytes);
  }
  [[nodiscard]] std::shared_ptr<spi::Storage> open_shared(spi::SharedDeviceMemory const& shared,
                                                          std::shared_ptr<void const> lease) override {
    return open_shared_device_memory(shared, std::move(lease));
  }

  [[nodiscard]] Stream create_stream(Device device, StreamOptions const& options) override {
    auto& state = device_state(device);
    ContextScope const scope(state);
    CUstream_st* made = nullptr;
    check(state.driver(),
          state.functions().cuStreamCreateWithPriority(&made, api::stream_non_blocking, options.priority),
          "cuStreamCreateWithPriority", "Stream.create");
    return {device, std::shared_ptr<void>(made, [&state](void* handle) { destroy_stream(state, handle); })};
  }
  [[nodiscard]] Event record(Stream const& stream) override {
    auto& state = device_state(stream.device());
    ContextScope const scope(state);
    return state.record(native(stream));
  }
  void wait(Stream const& stream, Event const& event) override {
    auto const& state = device_state(stream.device());
    ContextScope const scope(state);
    check(state.driver(), state.functions().cuStreamWaitEvent(native(stream), native(event), 0), "cuStreamWaitEvent",
          "Stream.wait");
  }
  [[nodiscard]] bool can_wait_for_host(Device device) override {
    return device_state(device).functions().cuStreamWaitValue32_v2 != nullptr;
  }
  void wait_for_host(Stream const& stream, std::uint32_t const* word, std::uint32_t value) override {
    require_no_foreign_capture(stream, "wait for the host");
    auto const& state = device_state(stream.device());
    ContextScope const scope(state);
    check(state.driver(),
          state.functions().cuStreamWaitValue32_v2(native(stream), api::device_address(word), value,
                                                   api::wait_value_reached),
          "cuStreamWaitValue32", "wait for the host");
  }
  [[nodiscard]] bool query(Event const& event) override {
    auto const& state = device_state(event.device());
    ContextScope const scope(state);
    return state.query(native(event));
  }
  [[nodiscard]] bool query(Stream const& stream) override {
    auto const& state = device_state(stream.device());
    ContextScope const scope(state);
    auto const result = state.functions().cuStreamQuery(native(stream));
    if (result == Result::not_ready) return false;
    check(state.driver(), result, "cuStreamQuery", "Stream.query");
    return true;
  }
  [[nodiscard]] bool is_capturing(Stream const& stream) override {
    auto const& state = device_state(stream.device());
    ContextScope const scope(state);
    auto status = api::CaptureStatus::none;
    check(state.driver(), state.functions().cuStreamIsCapturing(native(stream), &status), "cuStreamIsCapturing",
          "Stream.is_capturing");
    return status != api::CaptureStatus::none;
  }

  void copy(Stream const& stream, spi::DeviceCopy const& copy) override {
    if (copy.run_bytes == 0 || copy.runs == 0) return;
    require_no_foreign_capture(stream, "copy on a GPU");
    auto& state = device_state(stream.device());
    ContextScope const scope(state);
    state.drop_passed();
    bool const pitches_fit = copy.to_stride <= state.max_pitch() && copy.from_stride <= state.max_pitch();
    bool const crosses_gpus = on_gpu(copy.from_device) && on_gpu(copy.to_device) && copy.from_device != copy.to_device;
    if (copy.runs > 1 && pitches_fit && !crosses_gpus) return copy_rows(state, native(stream), copy);
    for (std::size_t run = 0; run < copy.runs; ++run) {
      copy_run(state, native(stream), copy, copy.to + run * copy.to_stride, copy.from + run * copy.from_stride);
    }
  }
  void fill(Stream const& stream, std::byte* at, std::byte value, std::size_t bytes) override {
    if (bytes == 0) return;
    require_no_foreign_capture(stream, "fill GPU memory");
    auto const& state = device_state(stream.device());
    ContextScope const scope(state);
    check(state.driver(),
          state.functions().cuMemsetD8Async(api::device_address(at), std::to_integer<unsigned char>(value), bytes,
                                            native(stream)),
          "cuMemsetD8Async", "fill GPU memory");
  }
  [[nodiscard]] bool has_kernels(Device device) override {
    auto& state = device_state(device);
    ContextScope const scope(state);
    return state.kernels().are_loaded();
  }
  void convert(Stream const& stream, spi::DeviceConversion const& conversion) override {
    if (conversion.elements == 0) return;
    require_no_foreign_capture(stream, "convert elements on a GPU");
    auto& state = device_state(stream.device());
    ContextScope const scope(state);
    state.kernels().convert(native(stream), conversion);
  }
  void reduce(Stream const& stream, spi::DeviceReduction const& reduction) override {
    if (reduction.elements == 0) return;
    require_no_foreign_capture(stream, "reduce elements on a GPU");
    auto& state = device_state(stream.device());
    ContextScope const scope(state);
    state.kernels().reduce(native(stream), reduction);
  }
  void pack(Stream const& stream, spi::DevicePacking const& packing) override {
    if (packing.units == 0) return;
    require_no_foreign_capture(stream, "copy elements on a GPU");
    auto& state = device_state(stream.device());
    ContextScope const scope(state);
    state.kernels().pack(native(stream), packing);
  }
  void will_write(Stream const& stream, std::shared_ptr<spi::Storage const> const& storage) override {
    if (auto* const capture = Capture::of(stream)) capture->will_write(storage);
  }
  void keep_alive(Stream const& stream, std::shared_ptr<void const> object) override {
    auto& state = device_state(stream.device());
    ContextScope const scope(state);
    if (auto* const capture = Capture::of(stream)) return capture->keep(std::move(object));
    require_no_foreign_capture(stream, "keep memory for a stream");
    state.drop_passed();
    state.keep_alive(stream, std::move(object));
  }

 private:
  static void destroy_stream(DeviceState const& state, void* handle) noexcept {
    if (open_driver() == nullptr) return;
    auto const& f = state.functions();
    try {
      ContextScope const scope(state);
      log_driver_error(f, f.cuStreamDestroy_v2(static_cast<CUstream_st*>(handle)), "cuStreamDestroy");
    } catch (Error const&) {  // the driver has shut down, and its streams with it
    }
  }
};

}  // namespace

spi::DeviceProvider& cuda_provider() noexcept {
  static NoDestructor<CudaProvider> provider;  // tensors may outlive `main`
  return provider.value;
}

}  // namespace crossrank::cuda
