#include "lib/tensor/device_tensor.hpp"

#include <cstdint>
#include <string>
#include <utility>

#include "lib/tensor/copy_memory.hpp"
#include "lib/tensor/heap_storage.hpp"
#include "lib/tensor/transfer/host_copies.hpp"

namespace crossrank {
namespace {

/// Notes that work on the stream uses the tensor's memory.
void use_on(Stream const& stream, Tensor const& tensor) {
  if (tensor.nbytes() == 0 || tensor.storage()->used_on(stream)) return;
  spi::device_provider(stream.device().kind).keep_alive(stream, tensor.storage());
}

void enqueue(Stream const& stream, Tensor const& to, Tensor const& from) {
  spi::device_provider(stream.device().kind)
      .copy(stream, {.to = to.data(),
                     .to_device = to.device(),
                     .from = from.data(),
                     .from_device = from.device(),
                     .run_bytes = from.nbytes()});
}

/// Returns whether each element is at a multiple of its size.
bool is_aligned(Tensor const& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data()) % (bits_of(tensor.dtype()) / 8) == 0;
}

/// Copies from the host. Pageable memory has been read when the driver's call returns; page-locked memory has not, also
/// that of another library or of a registered mapping, which the storage does not know.
void upload(Tensor const& to, Tensor const& from, CopyOptions const& options) {
  auto const stream = current_stream(to.device());
  bool const is_pinned = from.is_pinned();
  bool const is_pageable =
      !is_pinned && !spi::device_provider(to.device().kind).is_page_locked(to.device(), from.data());
  // Bytes that others hold cannot be written, so there is nothing to wait for.
  bool const waits = !is_pageable && !options.non_blocking && (!is_pinned || from.storage()->frozen_by().empty());
  // In a capture, the driver records the address of pageable memory, which each replay would read.
  if (is_pageable || waits) {
    require_no_capture(stream, "copy a tensor to a GPU",
                       "copy it before the capture, or copy pinned memory with CopyOptions::non_blocking");
  }
  enqueue(stream, to, from);
  use_on(stream, to);
  // The wait comes instead of keeping other page-locked memory, whose lease on a shared mapping would outlive the call.
  if (is_pinned || !(is_pageable || waits)) use_on(stream, from);
  if (waits) stream.record().synchronize();
}

void download(Tensor const& to, Tensor const& from, CopyOptions const& options) {
  auto const stream = current_stream(from.device());
  if (!to.is_pinned() || !options.non_blocking) {
    require_no_capture(stream, "copy a tensor to the host",
                       "copy it after the capture, or copy to pinned memory with CopyOptions::non_blocking");
  }
  use_on(stream, from);
  if (to.is_pinned()) {
    enqueue(stream, to, from);
    use_on(stream, to);
    if (!options.non_blocking) stream.record().synchronize();
    return;
  }
  // The driver copies to pageable memory inside the call, without a deadline: wait for the stream before.
  stream.record().synchronize();
  enqueue(stream, to, from);
  stream.record().synchronize();
}

/// Copies between GPUs, after the work that has made the source and before work that changes it.
void copy_to_peer(Tensor const& to, Tensor const& from) {
  auto const source = current_stream(from.device());
  auto const target = current_stream(to.device());
  target.wait(source.record());
  enqueue(target, to, from);
  use_on(target, to);
  use_on(target, from);
  source.wait(target.record());
}

}  // namespace

void copy_runs_on_gpu(Tensor const& to, StridedRuns const& to_runs, Tensor const& from, StridedRuns const& from_runs,
                      char const* operation) {
  if (to.device() != from.device()) {
    throw UsageError({.operation = operation,
                      .message = "the tensors are on different devices",
                      .expected = to_string(to.device()),
                      .got = to_string(from.device()),
                      .hint = "move them to one device with to()"});
  }
  auto const stream = current_stream(to.device());
  spi::device_provider(to.device().kind)
      .copy(stream, {.to = to.data() + to_runs.first_byte,
                     .to_device = to.device(),
                     .from = from.data() + from_runs.first_byte,
                     .from_device = from.device(),
                     .run_bytes = to_runs.run_bytes,
                     .runs = to_runs.count,
                     .to_stride = to_runs.stride_bytes,
                     .from_stride = from_runs.stride_bytes});
  use_on(stream, to);
  use_on(stream, from);
}

bool convert_on_gpu(Tensor const& to, Tensor const& from) {
  auto& provider = spi::device_provider(to.device().kind);
  if (!provider.has_kernels(to.device())) return false;
  // Kernels need aligned elements, and new memory is aligned.
  if (!is_aligned(from)) return convert_on_gpu(to, from.clone());
  if (!is_aligned(to)) {
    auto const aligned = Tensor::empty(to.shape(), to.dtype(), to.device());
    static_cast<void>(convert_on_gpu(aligned, from));
    copy_between(to, aligned, {});
    return true;
  }
  auto const stream = current_stream(to.device());
  provider.convert(stream, {.to = to.data(),
                            .from = from.data(),
                            .elements = static_cast<std::uint64_t>(from.numel()),
                            .to_dtype = to.dtype(),
                            .from_dtype = from.dtype()});
  use_on(stream, to);
  use_on(stream, from);
  return true;
}

void copy_between(Tensor const& to, Tensor const& from, CopyOptions const& options) {
  if (from.nbytes() == 0) return;
  if (!on_gpu(to) && !on_gpu(from)) return move_memory(to.data(), from.data(), from.nbytes());
  if (!on_gpu(from)) return upload(to, from, options);
  if (!on_gpu(to)) return download(to, from, options);
  if (to.device() != from.device()) return copy_to_peer(to, from);
  auto const stream = current_stream(to.device());
  enqueue(stream, to, from);
  use_on(stream, to);
  use_on(stream, from);
}

Tensor Tensor::empty(Shape const& shape, Dtype dtype, MemoryOptions const& memory) {
  auto const bytes = dense_bytes(shape, dtype);
  if (memory.device.kind == Device::Kind::cpu) {
    if (!memory.pinned) return empty(shape, dtype);
    return spi::tensor_from_storage(spi::device_provider(Device::Kind::cuda).allocate_pinned(bytes), 0, shape, dtype);
  }
  if (memory.pinned) {
    throw UsageError({.operation = "Tensor.empty",
                      .message = "only host memory can be pinned",
                      .expected = "cpu",
                      .got = to_string(memory.device)});
  }
  auto& provider = spi::device_provider(memory.device.kind);
  auto storage = provider.allocate(current_stream(memory.device), {.bytes = bytes, .shareable = memory.shareable});
  return spi::tensor_from_storage(std::move(storage), 0, shape, dtype);
}

Tensor Tensor::zeros(Shape const& shape, Dtype dtype, MemoryOptions const& memory) {
  auto tensor = empty(shape, dtype, memory);
  if (tensor.nbytes_ == 0) return tensor;
  if (!on_gpu(tensor)) {
    std::memset(tensor.data_, 0, tensor.nbytes_);
    return tensor;
  }
  spi::device_provider(memory.device.kind)
      .fill(current_stream(memory.device), tensor.data_, std::byte{0}, tensor.nbytes_);
  return tensor;
}

Tensor Tensor::from_blob(void* data, Shape const& shape, Dtype dtype, Device device,
                         std::function<void(void*)> deleter) {
  if (device.kind == Device::Kind::cpu) return from_blob(data, shape, dtype, std::move(deleter));
  auto const bytes = dense_bytes(shape, dtype);
  require_pointer(data, bytes, shape);
  auto storage = spi::device_provider(device.kind).borrow(device, data, bytes, std::move(deleter));
  return spi::tensor_from_storage(std::move(storage), 0, shape, dtype);
}

bool Tensor::is_pinned() const noexcept { return storage_ != nullptr && storage_->is_pinned(); }

Tensor Tensor::clone() const {
  if (!defined()) return {};
  require_usable("Tensor.clone");
  auto copy = empty(shape_, dtype_, device());
  copy_between(copy, *this, {});
  return copy;
}

Tensor Tensor::to(Device target, CopyOptions const& options) const {
  if (!defined() || device() == target) return *this;
  require_usable("Tensor.to");
  bool const lands_later = options.non_blocking && target.kind == Device::Kind::cpu;
  auto copy = empty(shape_, dtype_, MemoryOptions{.device = target, .pinned = lands_later});
  copy_between(copy, *this, options);
  return copy;
}

void Tensor::copy_from(Tensor const& source, CopyOptions const& options) {
  constexpr auto const* operation = "Tensor.copy_from";
  require_usable(operation);
  source.require_usable(operation);
  if (shape_ != source.shape_ || dtype_ != source.dtype_) {
    throw UsageError({.operation = operation,
                      .message = "the tensors differ in dtype or shape",
                      .expected = to_string(*this),
                      .got = to_string(source)});
  }
  require_writable(operation);
  copy_between(*this, source, options);
}

void Tensor::record_stream(Stream const& stream) const {
  if (defined() && stream.device().kind != Device::Kind::cpu) use_on(stream, *this);
}

}  // namespace crossrank
