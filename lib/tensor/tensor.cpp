#include <crossrank/tensor.hpp>

#include <cstdint>
#include <string>
#include <utility>

#include "lib/tensor/copy_memory.hpp"
#include "lib/tensor/strided_runs.hpp"
#include "lib/tensor/heap_storage.hpp"
#include "lib/tensor/tensor_checks.hpp"

namespace crossrank {

Tensor Tensor::empty(Shape const& shape, Dtype dtype) {
  return spi::tensor_from_storage(std::make_shared<HeapStorage>(dense_bytes(shape, dtype)), 0, shape, dtype);
}

Tensor Tensor::zeros(Shape const& shape, Dtype dtype) {
  auto tensor = empty(shape, dtype);
  if (tensor.nbytes_ > 0) std::memset(tensor.data_, 0, tensor.nbytes_);
  return tensor;
}

Tensor Tensor::copy_of(std::span<std::byte const> bytes, std::size_t count, Shape const& shape, Dtype dtype) {
  auto tensor = empty(shape, dtype);
  if (tensor.nbytes_ != bytes.size()) {
    throw UsageError({.operation = "Tensor.of",
                      .message = "the number of values does not match the shape",
                      .expected = std::to_string(shape.numel()) + " for " + to_string(shape),
                      .got = std::to_string(count)});
  }
  if (!bytes.empty()) copy_memory(tensor.data_, bytes.data(), bytes.size());
  return tensor;
}

Tensor Tensor::from_blob(void* data, Shape const& shape, Dtype dtype, std::function<void(void*)> deleter) {
  auto const bytes = dense_bytes(shape, dtype);
  require_pointer(data, bytes, shape);
  return spi::tensor_from_storage(std::make_shared<BorrowedStorage>(data, bytes, std::move(deleter)), 0, shape, dtype);
}

Device Tensor::device() const noexcept { return storage_ ? storage_->device() : Device{}; }

std::int64_t Tensor::numel() const noexcept {
  // `dense_bytes` checked the product when the tensor was made.
  return storage_ ? shape_.numel() : 0;
}

std::span<std::byte const> Tensor::bytes() const {
  require_cpu("Tensor.bytes");
  return {data_, nbytes_};
}

std::span<std::byte> Tensor::mutable_bytes() {
  require_cpu("Tensor.mutable_bytes");
  require_writable("Tensor.mutable_bytes");
  return {data_, nbytes_};
}

Tensor Tensor::narrow(std::int64_t dim, std::int64_t begin, std::int64_t length) const {
  auto const [shape, runs] = slice_runs(*this, dim, begin, length, "Tensor.narrow");
  if (runs.count > 1 && runs.run_bytes > 0 && runs.run_bytes != runs.stride_bytes) {
    throw UsageError({.operation = "Tensor.narrow",
                      .message = "the view would not be dense",
                      .got = "dimension " + std::to_string(dim) + " of " + to_string(*this),
                      .hint = "use slice, which copies"});
  }
  return spi::tensor_from_storage(storage_, runs.run_bytes == 0 ? offset_ : offset_ + runs.first_byte, shape, dtype_);
}

Tensor Tensor::reshape(Shape const& shape) const {
  if (!defined()) throw_undefined({.operation = "Tensor.reshape"});
  if (shape.numel() != shape_.numel()) {
    throw UsageError({.operation = "Tensor.reshape",
                      .message = "the number of elements would change",
                      .expected = std::to_string(numel()) + " elements of " + to_string(*this),
                      .got = to_string(shape)});
  }
  return spi::tensor_from_storage(storage_, offset_, shape, dtype_);
}

void Tensor::require_pointer(void const* data, std::size_t bytes, Shape const& shape) {
  if (data != nullptr || bytes == 0) return;
  throw UsageError({.operation = "Tensor.from_blob",
                    .message = "the data pointer is null, but the tensor has bytes",
                    .got = to_string(shape)});
}

void Tensor::require_usable(char const* operation) const {
  if (!defined()) throw_undefined({.operation = operation});
  if (auto why = storage_->revoked_by(); !why.empty()) throw_revoked(*this, operation, std::move(why));
}

void Tensor::require_cpu(char const* operation) const {
  require_usable(operation);
  if (device().kind != Device::Kind::cpu) {
    throw UsageError({.operation = operation,
                      .message = "the tensor is not on the CPU",
                      .expected = "cpu",
                      .got = to_string(device()),
                      .hint = "to(Device::cpu()) copies it to the host"});
  }
}

void Tensor::require_typed(Dtype wanted, std::size_t alignment, char const* operation) const {
  require_cpu(operation);
  if (dtype_ != wanted) {
    throw UsageError({.operation = operation,
                      .message = "wrong element type",
                      .expected = std::string(name_of(dtype_)),
                      .got = std::string(name_of(wanted)),
                      .hint = "bytes() returns the raw bytes of any dtype"});
  }
  if (reinterpret_cast<std::uintptr_t>(data_) % alignment != 0) {
    throw UsageError({.operation = operation,
                      .message = "the bytes are not aligned for the element type",
                      .expected = "a multiple of " + std::to_string(alignment),
                      .hint = "clone() makes an aligned copy"});
  }
}

void Tensor::require_single() const {
  if (!defined()) throw_undefined({.operation = "Tensor.item"});
  if (numel() == 1) return;
  throw UsageError(
      {.operation = "Tensor.item", .message = "the tensor does not have exactly one element", .got = to_string(*this)});
}

void Tensor::require_writable(char const* operation) const { crossrank::require_writable(*this, operation); }

std::string to_string(Tensor const& tensor) {
  if (!tensor.defined()) return "none";
  auto text = std::string(name_of(tensor.dtype())) + " " + to_string(tensor.shape());
  if (tensor.device().kind != Device::Kind::cpu) text += " on " + to_string(tensor.device());
  return text;
}

}  // namespace crossrank
