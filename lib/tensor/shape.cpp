#include <crossrank/tensor/shape.hpp>

#include <algorithm>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

[[noreturn]] void refuse_size(Shape const& shape, char const* message) {
  throw UsageError({.operation = "shape", .message = message, .got = to_string(shape)});
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> lengths)
    : Shape(std::span<std::int64_t const>(lengths.begin(), lengths.size())) {}

Shape::Shape(std::vector<std::int64_t> const& lengths) : Shape(std::span<std::int64_t const>(lengths)) {}

Shape::Shape(std::span<std::int64_t const> lengths) {
  if (lengths.size() > max_rank) {
    throw UsageError({.operation = "shape",
                      .message = "too many dimensions",
                      .expected = "at most " + std::to_string(max_rank),
                      .got = std::to_string(lengths.size())});
  }
  for (auto const length : lengths) {
    if (length < 0) {
      throw UsageError({.operation = "shape", .message = "a length is negative", .got = std::to_string(length)});
    }
  }
  auto* target = std::get_if<FewLengths>(&lengths_)->data();
  if (lengths.size() > std::tuple_size_v<FewLengths>) {
    auto many = std::make_shared<std::int64_t[]>(lengths.size());
    target = many.get();
    lengths_ = ManyLengths(std::move(many));
  }
  std::copy(lengths.begin(), lengths.end(), target);
  rank_ = static_cast<std::uint8_t>(lengths.size());
}

Shape Shape::with(std::size_t dim, std::int64_t length) const {
  std::vector<std::int64_t> lengths(begin(), end());
  if (dim >= lengths.size()) refuse_size(*this, "the dimension does not exist");
  lengths[dim] = length;
  return Shape(lengths);
}

std::int64_t Shape::numel() const {
  std::int64_t count = 1;
  for (auto const length : *this) {
    if (__builtin_mul_overflow(count, length, &count)) refuse_size(*this, "the number of elements overflows");
  }
  return count;
}

bool Shape::operator==(Shape const& other) const noexcept {
  return std::equal(begin(), end(), other.begin(), other.end());
}

std::string to_string(Shape const& shape) {
  std::string text = "[";
  for (auto const length : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(length);
  }
  return text + "]";
}

std::size_t dense_bytes(Shape const& shape, Dtype dtype) {
  auto const count = static_cast<std::uint64_t>(shape.numel());
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(bits_of(dtype)), &bits) ||
      bits / 8 > static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max())) {
    refuse_size(shape, "the number of bytes overflows");
  }
  if (bits % 8 != 0) refuse_size(shape, "the elements do not fill the last byte");
  return bits / 8;
}

}  // namespace crossrank
