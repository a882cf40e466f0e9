#include <crossrank/dlpack.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/dlpack/dlpack_strides.hpp"

namespace crossrank {
namespace {

constexpr auto const* import_operation = "from_dlpack";

[[noreturn]] void refuse(std::string message, std::string expected, std::string got, std::string hint = {}) {
  throw UsageError({.operation = import_operation,
                    .message = std::move(message),
                    .expected = std::move(expected),
                    .got = std::move(got),
                    .hint = std::move(hint)});
}

/// Memory of another library. Gives it back with its last view.
class ForeignStorage final : public spi::Storage {
 public:
  struct Parts {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    Device device{};
    bool pinned = false;
    bool read_only = false;
    std::shared_ptr<void> owner{};
  };

  explicit ForeignStorage(Parts parts) : parts_(std::move(parts)) {}
  [[nodiscard]] std::byte* data() noexcept override { return parts_.data; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return parts_.bytes; }
  [[nodiscard]] Device device() const noexcept override { return parts_.device; }
  [[nodiscard]] bool is_pinned() const noexcept override { return parts_.pinned; }
  [[nodiscard]] std::string frozen_by() const override {
    return parts_.read_only ? "read-only memory of another library" : "";
  }

 private:
  Parts parts_;
};

Device known_device(dlpack::Device const& device) {
  switch (device.type) {
    case dlpack::device_cpu:
    case dlpack::device_cuda_host: return Device::cpu();
    case dlpack::device_cuda: return Device::cuda(device.index);
    default: break;
  }
  refuse("the tensor is on an unknown kind of device", "DLPack device type 1, 2 or 3", std::to_string(device.type),
         "copy it to the CPU or a CUDA device first");
}

Dtype known_dtype(dlpack::DataType const& type) {
  if (auto const dtype = dlpack::dtype_of(type)) return *dtype;
  refuse("there is no such element type", "one of the types of the safetensors format",
         "DLPack code " + std::to_string(type.code) + " of " + std::to_string(type.bits) + " bits, " +
             std::to_string(type.lanes) + " lanes");
}

Shape shape_of(dlpack::Tensor const& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > static_cast<std::int32_t>(Shape::max_rank))
    refuse("the number of dimensions is not possible", "0 to " + std::to_string(Shape::max_rank),
           std::to_string(tensor.ndim));
  if (tensor.ndim > 0 && tensor.shape == nullptr) refuse("the tensor has dimensions but no shape", "lengths", "null");
  return Shape(std::span<std::int64_t const>(tensor.shape, as_size(tensor.ndim)));
}

/// A tensor of another library, checked.
class Foreign {
 public:
  Foreign(dlpack::Tensor const& tensor, bool read_only, std::shared_ptr<void> owner)
      : tensor_(tensor),
        read_only_(read_only),
        owner_(std::move(owner)),
        device_(known_device(tensor.device)),
        dtype_(known_dtype(tensor.dtype)),
        shape_(shape_of(tensor)),
        bytes_(dense_bytes(shape_, dtype_)),
        first_(tensor.data == nullptr ? nullptr : static_cast<std::byte*>(tensor.data) + tensor.byte_offset) {
    if (first_ == nullptr && bytes_ > 0) refuse("the data pointer is null", "the first byte", "null");
  }

  [[nodiscard]] Tensor import(DlpackImport const& options) const {
    bool const dense = is_dense(tensor_);
    if (dense && options.copy != DlpackCopy::always) return view();
    if (dense) return view().clone();
    if (options.copy == DlpackCopy::never)
      refuse("the tensor is not dense and row-major", "memory that can be shared", "strides",
             "make it contiguous first");
    return packed();
  }

 private:
  /// Throws unless the range is memory of the device.
  void check_memory(std::byte* data, std::size_t bytes) const {
    if (device_.kind == Device::Kind::cpu || bytes == 0) return;
    static_cast<void>(spi::device_provider(device_.kind).borrow(device_, data, bytes, {}));
  }

  [[nodiscard]] Tensor view() const {
    check_memory(first_, bytes_);
    auto storage = std::make_shared<ForeignStorage>(
        ForeignStorage::Parts{.data = first_,
                              .bytes = bytes_,
                              .device = device_,
                              .pinned = tensor_.device.type == dlpack::device_cuda_host,
                              .read_only = read_only_,
                              .owner = owner_});
    return spi::tensor_from_storage(std::move(storage), 0, shape_, dtype_);
  }

  /// Copies a tensor with strides into dense memory.
  [[nodiscard]] Tensor packed() const {
    auto const bits = bits_of(dtype_);
    if (bits % 8 != 0)
      refuse("elements of less than a byte are not dense", "a dense tensor", std::to_string(bits) + " bits",
             "make it contiguous first");
    auto const range = reached_elements(tensor_);
    if (!range) refuse("the strides overflow", "strides inside the memory", "larger ones");
    auto const element = static_cast<std::int64_t>(bits / 8);
    check_memory(first_ + range->first * element, as_size(range->last - range->first + 1) * as_size(element));
    auto copy = Tensor::empty(shape_, dtype_, device_);
    copy_strided(copy, tensor_, first_);
    if (device_.kind != Device::Kind::cpu)
      spi::device_provider(device_.kind).keep_alive(current_stream(device_), owner_);
    return copy;
  }

  dlpack::Tensor const& tensor_;
  bool read_only_;
  std::shared_ptr<void> owner_;
  Device device_;
  Dtype dtype_;
  Shape shape_;
  std::size_t bytes_;
  std::byte* first_;
};

}  // namespace

Tensor from_dlpack(dlpack::OwnedVersioned foreign, DlpackImport const& options) {
  if (!foreign) refuse("there is no tensor", "a tensor of DLPack", "null");
  if (foreign->version.major != 1)
    refuse("the tensor was exported by another major version of DLPack", "1", std::to_string(foreign->version.major));
  auto const& tensor = foreign->tensor;
  if ((foreign->flags & dlpack::flag_padded) != 0 && tensor.dtype.bits < 8)
    refuse("each element takes a byte of its own", "elements that fill their bytes", "padded elements");
  bool const read_only = (foreign->flags & dlpack::flag_read_only) != 0;
  return Foreign(tensor, read_only, std::shared_ptr<dlpack::ManagedVersioned>(std::move(foreign))).import(options);
}

Tensor from_dlpack(dlpack::OwnedManaged foreign, DlpackImport const& options) {
  if (!foreign) refuse("there is no tensor", "a tensor of DLPack", "null");
  auto const& tensor = foreign->tensor;
  return Foreign(tensor, false, std::shared_ptr<dlpack::Managed>(std::move(foreign))).import(options);
}

}  // namespace crossrank
