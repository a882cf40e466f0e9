#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <crossrank/device.hpp>
#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/element_range.hpp>
#include <crossrank/error.hpp>
#include <crossrank/export.hpp>
#include <crossrank/tensor/shape.hpp>
#include <crossrank/spi/storage.hpp>
#include <crossrank/stream.hpp>

namespace crossrank {

/// Where and how the memory of a new tensor is allocated.
struct MemoryOptions {
  Device device{};         ///< host or GPU
  bool pinned = false;     ///< page-locks host memory, so that GPUs copy it directly; costs a system call per tensor
  bool shareable = false;  ///< lets other processes open GPU memory
};

/// How bytes are copied between host and device.
struct CopyOptions {
  /// Returns before a copy between a GPU and pinned host memory has ended. The host may touch that memory after
  /// `current_stream(gpu).synchronize()`.
  bool non_blocking = false;
};

/// A dense row-major view of shared memory, with a shape and an element type.
///
/// Local. Copying a `Tensor` copies the view: both share the bytes, which live until the last view is gone. A
/// default-constructed tensor is *undefined*: `defined()` is false, it has no elements, and access is a `UsageError`.
/// So is access to a parameter of a sharded model after its memory was given back.
///
/// The bytes are on the host or on a GPU. Operations on a GPU are enqueued on `current_stream(device)` and return
/// without waiting; the memory is freed in the order of the streams that have used it. They throw `UnavailableError` if
/// there is no driver or too little memory, and `BackendError` when CUDA fails, possibly because of earlier work.
class CROSSRANK_EXPORT Tensor {
 public:
  /// Makes an undefined tensor.
  Tensor() noexcept = default;
  /// Shares the view.
  Tensor(Tensor const&) = default;
  /// Takes the view; `other` is undefined afterwards.
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  /// Shares the view.
  Tensor& operator=(Tensor const&) = default;
  /// Takes the view; `other` is undefined afterwards.
  Tensor& operator=(Tensor&& other) noexcept {
    if (this == &other) return *this;
    storage_ = std::move(other.storage_);
    data_ = std::exchange(other.data_, nullptr);
    offset_ = std::exchange(other.offset_, 0);
    nbytes_ = std::exchange(other.nbytes_, 0);
    shape_ = std::exchange(other.shape_, Shape());
    dtype_ = std::exchange(other.dtype_, Dtype::u8);
    return *this;
  }
  ~Tensor() = default;

  /// Allocates memory aligned to 64 bytes; its contents are undetermined. `UsageError` for sizes that overflow,
  /// `UnavailableError` when there is not enough memory.
  [[nodiscard]] static Tensor empty(Shape const& shape, Dtype dtype);
  /// Allocates memory on a device, or on the host as above. A GPU's memory comes from a pool in the order of the
  /// current stream. `UsageError` for a device that does not exist.
  [[nodiscard]] static Tensor empty(Shape const& shape, Dtype dtype, MemoryOptions const& memory);
  /// Allocates memory on a device.
  [[nodiscard]] static Tensor empty(Shape const& shape, Dtype dtype, Device device) {
    return empty(shape, dtype, MemoryOptions{.device = device});
  }
  /// Allocates memory filled with zero bytes; errors as for `empty`.
  [[nodiscard]] static Tensor zeros(Shape const& shape, Dtype dtype);
  /// Allocates memory on a device, filled with zero bytes; errors as for `empty`.
  [[nodiscard]] static Tensor zeros(Shape const& shape, Dtype dtype, MemoryOptions const& memory);
  /// Allocates memory on a device, filled with zero bytes.
  [[nodiscard]] static Tensor zeros(Shape const& shape, Dtype dtype, Device device) {
    return zeros(shape, dtype, MemoryOptions{.device = device});
  }
  /// Copies any contiguous range of elements: `of(vector, {2, 3})`. `UsageError` when their number does not match the
  /// shape.
  template <ElementRange R>
  [[nodiscard]] static Tensor of(R&& values, Shape const& shape) {
    return of(std::span<std::remove_cv_t<detail::ElementOf<R>> const>(values), shape);
  }
  /// Copies elements of an explicit type: `of<float>(vector, {2, 3})`. Errors as above.
  template <Element T>
  [[nodiscard]] static Tensor of(std::span<T const> values, Shape const& shape) {
    return copy_of(std::as_bytes(values), values.size(), shape, dtype_of<T>);
  }
  /// Copies a braced list: `of<float>({1, 2}, {2})`, `of({1.0F, 2.0F}, {2})`. Errors as above.
  template <Element T>
  [[nodiscard]] static Tensor of(std::initializer_list<T> values, Shape const& shape) {
    return of(std::span<T const>(std::data(values), values.size()), shape);
  }
  /// Copies one value into a tensor with shape `{}`.
  template <Element T>
  [[nodiscard]] static Tensor scalar(T value) {
    return of(std::span<T const>(&value, 1), Shape{});
  }
  /// Makes a view of the caller's memory, dense and row-major, without a copy. `deleter(data)` runs when the last view
  /// is gone; without a deleter the memory must outlive all views.
  [[nodiscard]] static Tensor from_blob(void* data, Shape const& shape, Dtype dtype,
                                        std::function<void(void*)> deleter = {});
  /// Makes a view of the caller's memory on a device. `deleter(data)` runs in any thread, without waiting for streams.
  /// `UsageError` when `data` is not memory of that device, or when fewer bytes are left in its allocation.
  [[nodiscard]] static Tensor from_blob(void* data, Shape const& shape, Dtype dtype, Device device,
                                        std::function<void(void*)> deleter = {});

  /// Returns whether the tensor is defined.
  [[nodiscard]] bool defined() const noexcept { return storage_ != nullptr; }
  /// Returns the lengths of the dimensions.
  [[nodiscard]] Shape const& shape() const noexcept { return shape_; }
  /// Returns the element type.
  [[nodiscard]] Dtype dtype() const noexcept { return dtype_; }
  /// Returns the device that holds the bytes.
  [[nodiscard]] Device device() const noexcept;
  /// Returns whether the bytes are host memory that GPUs copy directly.
  [[nodiscard]] bool is_pinned() const noexcept;
  /// Returns the number of elements; 0 for an undefined tensor.
  [[nodiscard]] std::int64_t numel() const noexcept;
  /// Returns the number of bytes.
  [[nodiscard]] std::size_t nbytes() const noexcept { return nbytes_; }

  /// Returns the elements. `UsageError` when `T` is not the dtype, when the tensor is undefined or not on the CPU (use
  /// `to(Device::cpu())`), or when the bytes are not aligned for `T` (`clone()` first).
  ///
  /// The elements are valid as long as a tensor holds the bytes. Keep the tensor in a variable before a loop over the
  /// elements: `for (auto x : t.clone().as<float>())` reads freed memory in C++20.
  template <Element T>
  [[nodiscard]] std::span<T const> as() const {
    require_typed(dtype_of<T>, alignof(T), "Tensor.as");
    return {reinterpret_cast<T const*>(data_), nbytes_ / sizeof(T)};
  }
  /// Returns the elements for writing. Errors as for `as`; `UsageError` also while other ranks, a mapped file or
  /// another library hold the bytes; it names them. Tensors of this process that view the same bytes change too.
  template <Element T>
  [[nodiscard]] std::span<T> as_mutable() {
    require_typed(dtype_of<T>, alignof(T), "Tensor.as_mutable");
    require_writable("Tensor.as_mutable");
    return {reinterpret_cast<T*>(data_), nbytes_ / sizeof(T)};
  }
  /// Returns the only element. `UsageError` when there is not exactly one, or as for `as`.
  template <Element T>
  [[nodiscard]] T item() const {
    require_single();
    require_typed(dtype_of<T>, 1, "Tensor.item");
    T value{};
    std::memcpy(&value, data_, sizeof(T));
    return value;
  }
  /// Returns the bytes of a tensor of any dtype. `UsageError` when the tensor is undefined or not on the CPU.
  [[nodiscard]] std::span<std::byte const> bytes() const;
  /// Returns the bytes for writing; errors as for `as_mutable`.
  [[nodiscard]] std::span<std::byte> mutable_bytes();

  /// Returns a view of `length` entries of dimension `dim`, from `begin` on, without a copy.
  ///
  /// The result must be dense: `dim` is 0, or all dimensions before it have length 1. `UsageError` otherwise; use
  /// `slice`, which copies.
  [[nodiscard]] Tensor narrow(std::int64_t dim, std::int64_t begin, std::int64_t length) const;
  /// Returns a view of the same bytes in another shape with as many elements; `UsageError` otherwise.
  [[nodiscard]] Tensor reshape(Shape const& shape) const;
  /// Copies the tensor into writable memory of its own, on the same device. An undefined tensor stays undefined.
  [[nodiscard]] Tensor clone() const;

  /// Returns the tensor on `device`: itself when it is there already, else a copy. An undefined tensor stays undefined.
  ///
  /// Copies the bytes once. A copy to the host returns when the bytes are there; a copy from the host returns when the
  /// source may be changed. With `CopyOptions::non_blocking` the call waits for neither. From one GPU to another, both
  /// current streams are ordered and the host waits for nothing. `TimeoutError` when the stream does not finish in
  /// time, as for `Event::synchronize`.
  [[nodiscard]] Tensor to(Device device, CopyOptions const& options = {}) const;
  /// Returns the tensor with elements of `dtype`: itself when it has that dtype, else a new tensor on the same device.
  /// An undefined tensor stays undefined.
  ///
  /// Reads each element once. A GPU converts on its current stream, and the host waits for nothing; when its driver
  /// refuses the kernel, the host converts. The bits are the same either way. Floats are rounded to the nearest, ties
  /// to even, those of 8 and 16 bits from F32; a number beyond the largest becomes infinity, or NaN in a format without
  /// infinity. From a float to an integer, the fraction is dropped, a number beyond the integers becomes the nearest
  /// one, and NaN becomes 0. Integers wrap around. All numbers but 0 become true. `UsageError` for F4, the F6 formats
  /// and C64.
  [[nodiscard]] Tensor to(Dtype dtype) const;
  /// Overwrites the bytes with those of `source`, which may be on another device; costs and errors as for `to`.
  /// `UsageError` when dtype or shape differ, when one of the two is undefined, or while other ranks, a mapped file or
  /// another library hold the bytes.
  void copy_from(Tensor const& source, CopyOptions const& options = {});
  /// Keeps the bytes allocated until `stream` has finished the work that the caller has enqueued on it so far. Needed
  /// only for work that crossrank did not enqueue; does nothing for the CPU's stream.
  void record_stream(Stream const& stream) const;

  /// Returns the first byte, which may be device memory. For backends.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  /// Returns the memory behind the view. For backends.
  [[nodiscard]] std::shared_ptr<spi::Storage> const& storage() const noexcept { return storage_; }
  /// Returns the offset of the view in its storage, in bytes. For backends.
  [[nodiscard]] std::size_t byte_offset() const noexcept { return offset_; }

 private:
  friend Tensor spi::tensor_from_storage(std::shared_ptr<spi::Storage>, std::size_t, Shape const&, Dtype);

  [[nodiscard]] static Tensor copy_of(std::span<std::byte const> bytes, std::size_t count, Shape const& shape,
                                      Dtype dtype);
  static void require_pointer(void const* data, std::size_t bytes, Shape const& shape);
  void require_usable(char const* operation) const;
  void require_cpu(char const* operation) const;
  void require_typed(Dtype wanted, std::size_t alignment, char const* operation) const;
  void require_single() const;
  void require_writable(char const* operation) const;

  std::shared_ptr<spi::Storage> storage_{};
  std::byte* data_ = nullptr;
  std::size_t offset_ = 0;
  std::size_t nbytes_ = 0;
  Shape shape_{};
  Dtype dtype_ = Dtype::u8;
};

/// Returns dtype, shape and device in one line: "F32 [2, 3]"; "none" for an undefined tensor. Local.
[[nodiscard]] CROSSRANK_EXPORT std::string to_string(Tensor const& tensor);

}  // namespace crossrank
