#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/collective/reduce_op.hpp>

namespace crossrank {

/// The arguments of a call that all ranks must agree on, noted in a few bytes.
///
/// Every call records its arguments and posts them with its arrival, which costs some nanoseconds. They become words
/// only when ranks disagree. Arguments that do not fit are left out and shown as "...".
// NOLINTNEXTLINE(cppcoreguidelines-special-member-functions,cppcoreguidelines-pro-type-member-init): a move is a copy
class CallArguments {
 public:
  static constexpr std::size_t max_bytes = 119;  ///< with their length and a round number they fill two cache lines

  // NOLINTBEGIN(cppcoreguidelines-pro-type-member-init): bytes behind the last argument are never read
  CallArguments() noexcept = default;
  CallArguments(CallArguments const& other) noexcept { *this = other; }
  // NOLINTEND(cppcoreguidelines-pro-type-member-init)
  CallArguments& operator=(CallArguments const& other) noexcept {
    size_ = other.size_;
    std::memcpy(bytes_.data(), other.bytes_.data(), size_);
    return *this;
  }
  ~CallArguments() = default;

  /// Records the name of the call where it differs from the operation's.
  CallArguments& name(std::string_view value) noexcept { return put(Kind::name, value); }
  CallArguments& text(std::string_view value) noexcept { return put(Kind::text, value); }
  CallArguments& dtype(Dtype value) noexcept { return put(Kind::dtype, static_cast<std::uint64_t>(value)); }
  CallArguments& op(ReduceOp value) noexcept { return put(Kind::op, static_cast<std::uint64_t>(value)); }
  CallArguments& root(int value) noexcept { return put(Kind::root, static_cast<std::uint64_t>(value)); }
  CallArguments& tag(std::uint32_t value) noexcept { return put(Kind::tag, value); }
  CallArguments& shape(std::span<std::int64_t const> value) noexcept { return put_list(Kind::shape, value); }
  /// Records the shape of tensors that may differ in their first dimension.
  CallArguments& rows_of(std::span<std::int64_t const> value) noexcept { return put_list(Kind::rows_of, value); }
  /// Records how a first dimension is divided among the ranks.
  CallArguments& parts(std::span<std::int64_t const> value) noexcept;
  template <class Ranks>
  CallArguments& ranks(Ranks const& value) noexcept {
    return put_list(Kind::ranks, value);
  }

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::string_view bytes() const noexcept {
    return {reinterpret_cast<char const*>(bytes_.data()), size_};
  }

 private:
  friend std::string describe_call(std::string_view operation, std::string_view arguments);
  enum class Kind : std::uint8_t {
    name = 1,
    text,
    dtype,
    op,
    root,
    tag,
    shape,
    rows_of,
    parts,
    many_parts,
    ranks,
    truncate
  };
  static constexpr std::size_t longest_number = 10;
  static constexpr std::size_t reserved_bytes = 1;  ///< for `truncate`

  void byte(std::uint8_t value) noexcept { bytes_[size_++] = value; }
  /// Seven bits in each byte, the lowest first.
  void number(std::uint64_t value) noexcept {
    for (; value >= 0x80; value >>= 7) byte(static_cast<std::uint8_t>(value | 0x80));
    byte(static_cast<std::uint8_t>(value));
  }
  [[nodiscard]] bool has_space(std::size_t bytes) const noexcept { return size_ + bytes + reserved_bytes <= max_bytes; }
  CallArguments& truncate() noexcept;
  CallArguments& put(Kind kind, std::uint64_t value) noexcept {
    if (!has_space(1 + longest_number)) return truncate();
    byte(static_cast<std::uint8_t>(kind));
    number(value);
    return *this;
  }
  CallArguments& put(Kind kind, std::string_view value) noexcept;
  template <class Numbers>
  CallArguments& put_list(Kind kind, Numbers const& values) noexcept {
    auto const begun = size_;
    if (!has_space(1 + longest_number)) return truncate();
    byte(static_cast<std::uint8_t>(kind));
    number(static_cast<std::uint64_t>(values.size()));
    for (auto const value : values) {
      if (!has_space(longest_number)) {
        size_ = begun;
        return truncate();
      }
      number(static_cast<std::uint64_t>(value));
    }
    return *this;
  }

  std::size_t size_ = 0;
  std::array<std::uint8_t, max_bytes> bytes_;  ///< the first `size_` are set
};

/// Returns the call in words: `operation`, or the name that the arguments give, and the noted arguments. `arguments`
/// may be any bytes: another process wrote them.
[[nodiscard]] std::string describe_call(std::string_view operation, std::string_view arguments);

}  // namespace crossrank
