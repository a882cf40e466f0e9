#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include <crossrank/dtype.hpp>
#include <crossrank/reduce_op.hpp>

namespace crossrank {

/// What ranks that disagree about a call are advised to do.
inline constexpr char const* mismatch_hint = "make every rank of the group call the same thing in the same order";

/// The arguments of a call that all ranks must agree on, noted in a few bytes.
///
/// Every call notes them and posts them with its arrival, which costs some nanoseconds. They become words only when
/// ranks disagree. What does not fit is left out and shown as "...".
class CallNotes {
 public:
  static constexpr std::size_t most_bytes = 119;  ///< with a length they fill two cache lines but for a round number

  CallNotes() noexcept = default;
  CallNotes(CallNotes const& other) noexcept { *this = other; }
  CallNotes& operator=(CallNotes const& other) noexcept {
    size_ = other.size_;
    std::memcpy(bytes_.data(), other.bytes_.data(), size_);
    return *this;
  }
  ~CallNotes() = default;

  /// The name of the call, where that is not the verb's.
  CallNotes& name(std::string_view value) noexcept { return put(Kind::name, value); }
  CallNotes& text(std::string_view value) noexcept { return put(Kind::text, value); }
  CallNotes& dtype(Dtype value) noexcept { return put(Kind::dtype, static_cast<std::uint64_t>(value)); }
  CallNotes& op(ReduceOp value) noexcept { return put(Kind::op, static_cast<std::uint64_t>(value)); }
  CallNotes& root(int value) noexcept { return put(Kind::root, static_cast<std::uint64_t>(value)); }
  CallNotes& tag(std::uint32_t value) noexcept { return put(Kind::tag, value); }
  CallNotes& shape(std::span<std::int64_t const> value) noexcept { return put_list(Kind::shape, value); }
  /// The shape of tensors that may differ in their first dimension.
  CallNotes& rows_of(std::span<std::int64_t const> value) noexcept { return put_list(Kind::rows_of, value); }
  /// How a first dimension is divided among the ranks.
  CallNotes& parts(std::span<std::int64_t const> value) noexcept;
  template <class Ranks>
  CallNotes& ranks(Ranks const& value) noexcept {
    return put_list(Kind::ranks, value);
  }

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::string_view bytes() const noexcept {
    return {reinterpret_cast<char const*>(bytes_.data()), size_};
  }

 private:
  friend std::string words_of(std::string_view verb, std::string_view notes);
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
    cut
  };
  static constexpr std::size_t longest_number = 10;
  static constexpr std::size_t least_room = 1;  ///< for `cut`

  void byte(std::uint8_t value) noexcept { bytes_[size_++] = value; }
  /// Seven bits in each byte, the lowest first.
  void number(std::uint64_t value) noexcept {
    for (; value >= 0x80; value >>= 7) byte(static_cast<std::uint8_t>(value | 0x80));
    byte(static_cast<std::uint8_t>(value));
  }
  [[nodiscard]] bool has_room(std::size_t bytes) const noexcept { return size_ + bytes + least_room <= most_bytes; }
  CallNotes& cut() noexcept;
  CallNotes& put(Kind kind, std::uint64_t value) noexcept {
    if (!has_room(1 + longest_number)) return cut();
    byte(static_cast<std::uint8_t>(kind));
    number(value);
    return *this;
  }
  CallNotes& put(Kind kind, std::string_view value) noexcept;
  template <class Numbers>
  CallNotes& put_list(Kind kind, Numbers const& values) noexcept {
    auto const begun = size_;
    if (!has_room(1 + longest_number)) return cut();
    byte(static_cast<std::uint8_t>(kind));
    number(static_cast<std::uint64_t>(values.size()));
    for (auto const value : values) {
      if (!has_room(longest_number)) {
        size_ = begun;
        return cut();
      }
      number(static_cast<std::uint64_t>(value));
    }
    return *this;
  }

  std::size_t size_ = 0;
  std::array<std::uint8_t, most_bytes> bytes_;  ///< of which `size_` are set
};

/// Returns the call in words: `verb`, or the name that the notes give, and the noted arguments. `notes` may be any
/// bytes: another process wrote them.
[[nodiscard]] std::string words_of(std::string_view verb, std::string_view notes);

}  // namespace crossrank
