#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/export.hpp>

namespace crossrank {

/// The lengths of a tensor's dimensions, slowest-varying first. `{}` is a scalar. Copies do not allocate: those of a
/// shape of more than 4 dimensions share its lengths.
class CROSSRANK_EXPORT Shape {
 public:
  /// The largest number of dimensions that a tensor may have.
  static constexpr std::size_t max_rank = 16;

  /// Makes the shape of a scalar.
  Shape() noexcept = default;
  /// Makes a shape. `UsageError` for a negative length or more than `max_rank` of them.
  Shape(std::initializer_list<std::int64_t> lengths);
  // NOLINTBEGIN(google-explicit-constructor): the same value as another type
  /// Makes a shape from a vector; errors as for a braced list.
  Shape(std::vector<std::int64_t> const& lengths);
  /// Makes a shape from a span; errors as for a braced list.
  Shape(std::span<std::int64_t const> lengths);
  // NOLINTEND(google-explicit-constructor)
  /// Copies the lengths.
  Shape(Shape const&) noexcept = default;
  /// Copies the lengths, which `other` keeps.
  Shape(Shape&& other) noexcept : Shape(std::as_const(other)) {}  // NOLINT(performance-move-constructor-init)
  /// Copies the lengths.
  Shape& operator=(Shape const&) noexcept = default;
  /// Copies the lengths, which `other` keeps.
  Shape& operator=(Shape&& other) noexcept { return *this = std::as_const(other); }
  ~Shape() = default;

  /// Returns the number of dimensions.
  [[nodiscard]] std::size_t size() const noexcept { return rank_; }
  /// Returns whether this is the shape of a scalar.
  [[nodiscard]] bool empty() const noexcept { return rank_ == 0; }
  /// Returns a pointer to the first length.
  [[nodiscard]] std::int64_t const* data() const noexcept {
    auto const* const few = std::get_if<FewLengths>(&lengths_);
    return few != nullptr ? few->data() : std::get_if<ManyLengths>(&lengths_)->get();
  }
  /// Returns an iterator to the first length.
  [[nodiscard]] std::int64_t const* begin() const noexcept { return data(); }
  /// Returns an iterator past the last length.
  [[nodiscard]] std::int64_t const* end() const noexcept { return data() + rank_; }
  /// Returns the length of dimension `dim`, which is below `size()`.
  [[nodiscard]] std::int64_t operator[](std::size_t dim) const noexcept { return data()[dim]; }
  /// Returns the same shape with `length` in dimension `dim`. `UsageError` when there is no such dimension.
  [[nodiscard]] Shape with(std::size_t dim, std::int64_t length) const;
  /// Returns the number of elements. `UsageError` when it does not fit in 63 bits.
  [[nodiscard]] std::int64_t numel() const;

  /// Returns whether both have the same lengths.
  [[nodiscard]] bool operator==(Shape const& other) const noexcept;

 private:
  using FewLengths = std::array<std::int64_t, 4>;
  using ManyLengths = std::shared_ptr<std::int64_t const[]>;

  std::variant<FewLengths, ManyLengths> lengths_{};
  std::uint8_t rank_ = 0;
};

/// Returns the text "[2, 3]". Local.
[[nodiscard]] CROSSRANK_EXPORT std::string to_string(Shape const& shape);

/// Returns the size of a dense tensor in bytes. Local. `UsageError` on overflow, or when elements narrower than a byte
/// do not fill the last byte.
[[nodiscard]] CROSSRANK_EXPORT std::size_t dense_bytes(Shape const& shape, Dtype dtype);

/// Names a dimension: `concat(parts, {.dim = 1})`.
struct Dim {
  std::int64_t dim = 0;  ///< negative numbers count from the last dimension
};

}  // namespace crossrank
