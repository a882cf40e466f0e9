#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <span>
#include <type_traits>

#include <crossrank/device.hpp>
#include <crossrank/dtype.hpp>
#include <crossrank/element_range.hpp>
#include <crossrank/error.hpp>
#include <crossrank/export.hpp>
#include <crossrank/shape.hpp>
#include <crossrank/spi/storage.hpp>

namespace crossrank {

/// A dense row-major view of shared memory, with its shape and element type.
///
/// Local. Copying a `Tensor` copies the view: both share the bytes, which live until the last view is gone. A default
/// constructed one is none: `defined()` is false, it has no elements, and access is a `UsageError`.
class CROSSRANK_EXPORT Tensor {
 public:
  Tensor() noexcept = default;

  /// New memory, aligned to 64 bytes, contents undetermined. `UsageError` for sizes that overflow, `UnavailableError`
  /// when there is not that much memory.
  [[nodiscard]] static Tensor empty(Shape const& shape, Dtype dtype);
  /// The same, filled with zero bytes.
  [[nodiscard]] static Tensor zeros(Shape const& shape, Dtype dtype);
  /// A copy of `values`, which are any contiguous range of elements: `of(vector, {2, 3})`. `UsageError` when their
  /// number is not the shape's.
  template <ElementRange R>
  [[nodiscard]] static Tensor of(R&& values, Shape const& shape) {
    return of(std::span<std::remove_cv_t<detail::ElementOf<R>> const>(values), shape);
  }
  /// The same for elements of a type that is named: `of<float>(vector, {2, 3})`.
  template <Element T>
  [[nodiscard]] static Tensor of(std::span<T const> values, Shape const& shape) {
    return copy_of(std::as_bytes(values), values.size(), shape, dtype_of<T>);
  }
  /// The same for values that are written down: `of<float>({1, 2}, {2})`, `of({1.0F, 2.0F}, {2})`.
  template <Element T>
  [[nodiscard]] static Tensor of(std::initializer_list<T> values, Shape const& shape) {
    return of(std::span<T const>(std::data(values), values.size()), shape);
  }
  /// A copy of one value, with shape `{}`.
  template <Element T>
  [[nodiscard]] static Tensor scalar(T value) {
    return of(std::span<T const>(&value, 1), Shape{});
  }
  /// Views memory of the caller, dense and row-major; `deleter(data)` runs when the last view is gone. Copies nothing.
  /// Without a deleter the memory must outlive all views.
  [[nodiscard]] static Tensor from_blob(void* data, Shape const& shape, Dtype dtype,
                                        std::function<void(void*)> deleter = {});

  [[nodiscard]] bool defined() const noexcept { return storage_ != nullptr; }
  [[nodiscard]] Shape const& shape() const noexcept { return shape_; }
  [[nodiscard]] Dtype dtype() const noexcept { return dtype_; }
  [[nodiscard]] Device device() const noexcept;
  /// Number of elements; 0 when there is no tensor.
  [[nodiscard]] std::int64_t numel() const noexcept;
  [[nodiscard]] std::size_t nbytes() const noexcept { return nbytes_; }

  /// The elements. `UsageError` when `T` is not the dtype, the tensor is none or not on the CPU, or the bytes are not
  /// aligned for `T` (then `clone()` first).
  template <Element T>
  [[nodiscard]] std::span<T const> as() const {
    require_typed(dtype_of<T>, alignof(T), "Tensor.as");
    return {reinterpret_cast<T const*>(data_), nbytes_ / sizeof(T)};
  }
  /// The elements, to be written. As `as`; `UsageError` also while others hold the bytes: the text says who.
  template <Element T>
  [[nodiscard]] std::span<T> as_mutable() {
    require_typed(dtype_of<T>, alignof(T), "Tensor.as_mutable");
    require_writable("Tensor.as_mutable");
    return {reinterpret_cast<T*>(data_), nbytes_ / sizeof(T)};
  }
  /// The only element. `UsageError` when there is not exactly one, or as for `as`.
  template <Element T>
  [[nodiscard]] T item() const {
    require_single();
    require_typed(dtype_of<T>, 1, "Tensor.item");
    T value{};
    std::memcpy(&value, data_, sizeof(T));
    return value;
  }
  /// The bytes, whatever the dtype. `UsageError` when the tensor is none or not on the CPU.
  [[nodiscard]] std::span<std::byte const> bytes() const;
  /// The bytes, to be written; refused as `as_mutable`.
  [[nodiscard]] std::span<std::byte> mutable_bytes();

  /// A view of `length` entries of dimension `dim` from `begin` on. Copies nothing, so that only what stays dense can
  /// be asked for: dimension 0, or one behind dimensions of length 1. `UsageError` otherwise, naming `slice`, which
  /// copies.
  [[nodiscard]] Tensor narrow(std::int64_t dim, std::int64_t begin, std::int64_t length) const;
  /// A view of the same bytes in another shape with as many elements; `UsageError` otherwise.
  [[nodiscard]] Tensor reshape(Shape const& shape) const;
  /// A copy in memory of its own, writable. `UsageError` when the tensor is not on the CPU. None stays none.
  [[nodiscard]] Tensor clone() const;

  /// For backends: first byte (may be device memory), the memory behind it, and where in that it begins.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::shared_ptr<spi::Storage> const& storage() const noexcept { return storage_; }
  [[nodiscard]] std::size_t byte_offset() const noexcept { return offset_; }

 private:
  friend Tensor spi::tensor_over(std::shared_ptr<spi::Storage>, std::size_t, Shape const&, Dtype);

  [[nodiscard]] static Tensor copy_of(std::span<std::byte const> bytes, std::size_t count, Shape const& shape,
                                      Dtype dtype);
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

/// Dtype, shape and device in one line: "F32 [2, 3]"; "none". Local.
[[nodiscard]] CROSSRANK_EXPORT std::string to_string(Tensor const& tensor);

}  // namespace crossrank
