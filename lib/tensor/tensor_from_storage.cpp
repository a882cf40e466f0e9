#include <crossrank/spi/storage.hpp>

#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank::spi {

Tensor tensor_from_storage(std::shared_ptr<Storage> storage, std::size_t byte_offset, Shape const& shape, Dtype dtype) {
  if (!storage) throw UsageError({.operation = "tensor_from_storage", .message = "the storage is null"});
  auto const bytes = dense_bytes(shape, dtype);
  auto const capacity = storage->size_bytes();
  if (byte_offset > capacity || bytes > capacity - byte_offset) {
    throw UsageError({.operation = "tensor_from_storage",
                      .message = "the tensor does not lie inside its storage",
                      .expected = "at most " + std::to_string(capacity) + " bytes",
                      .got = std::to_string(bytes) + " bytes from byte " + std::to_string(byte_offset)});
  }
  Tensor tensor;
  // An empty storage may begin at null, and an offset from null would be undefined.
  tensor.data_ = capacity == 0 ? storage->data() : storage->data() + byte_offset;
  tensor.storage_ = std::move(storage);
  tensor.offset_ = byte_offset;
  tensor.nbytes_ = bytes;
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  return tensor;
}

}  // namespace crossrank::spi
