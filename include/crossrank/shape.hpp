#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include <crossrank/dtype.hpp>
#include <crossrank/export.hpp>

namespace crossrank {

/// Lengths of a tensor's dimensions, the slowest first; `{}` is a scalar. Held in place: copies allocate nothing.
class CROSSRANK_EXPORT Shape {
 public:
  /// Most dimensions that a tensor may have.
  static constexpr std::size_t max_rank = 16;

  Shape() noexcept = default;
  /// `UsageError` for a negative length or more than `max_rank` of them.
  Shape(std::initializer_list<std::int64_t> lengths);
  // NOLINTBEGIN(google-explicit-constructor): the same value in another type
  Shape(std::vector<std::int64_t> const& lengths);
  Shape(std::span<std::int64_t const> lengths);
  // NOLINTEND(google-explicit-constructor)

  /// Number of dimensions.
  [[nodiscard]] std::size_t size() const noexcept { return rank_; }
  [[nodiscard]] bool empty() const noexcept { return rank_ == 0; }
  [[nodiscard]] std::int64_t const* data() const noexcept { return lengths_.data(); }
  [[nodiscard]] std::int64_t const* begin() const noexcept { return data(); }
  [[nodiscard]] std::int64_t const* end() const noexcept { return data() + rank_; }
  /// `dim` is below `size()`.
  [[nodiscard]] std::int64_t operator[](std::size_t dim) const noexcept { return lengths_[dim]; }
  /// The same shape with `length` in dimension `dim`. `UsageError` when there is no such dimension.
  [[nodiscard]] Shape with(std::size_t dim, std::int64_t length) const;
  /// Number of elements. `UsageError` when it does not fit 63 bits.
  [[nodiscard]] std::int64_t numel() const;

  [[nodiscard]] bool operator==(Shape const& other) const noexcept;

 private:
  std::uint8_t rank_ = 0;
  std::array<std::int64_t, max_rank> lengths_{};
};

/// "[2, 3]". Local.
[[nodiscard]] CROSSRANK_EXPORT std::string to_string(Shape const& shape);

/// Bytes of a dense tensor. `UsageError` when that overflows or elements narrower than a byte do not fill the last one.
[[nodiscard]] CROSSRANK_EXPORT std::size_t dense_bytes(Shape const& shape, Dtype dtype);

/// Names a dimension: `concat(parts, {.dim = 1})`. Negative numbers count from the last one.
struct Dim {
  std::int64_t dim = 0;
};

}  // namespace crossrank
