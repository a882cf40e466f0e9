#include "lib/node/memory/call_arguments.hpp"

#include <algorithm>
#include <iterator>
#include <optional>

#include "lib/core/as_size.hpp"
#include "lib/core/reserved_tags.hpp"

namespace crossrank {
namespace {

constexpr std::size_t few_parts = 8;

char const* name_of(ReduceOp op) {
  static constexpr char const* names[] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};
  auto const number = as_index(op);
  return number < std::size(names) ? names[number] : "no op";
}

/// Decodes recorded arguments. Returns nothing when they end too early.
class ArgumentsReader {
 public:
  explicit ArgumentsReader(std::string_view arguments) : left_(arguments) {}
  [[nodiscard]] bool at_end() const noexcept { return left_.empty(); }

  std::optional<std::uint8_t> byte() noexcept {
    if (left_.empty()) return std::nullopt;
    auto const value = static_cast<std::uint8_t>(left_.front());
    left_.remove_prefix(1);
    return value;
  }
  std::optional<std::uint64_t> number() noexcept {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      auto const next = byte();
      if (!next) return std::nullopt;
      value |= static_cast<std::uint64_t>(*next & 0x7f) << shift;
      if ((*next & 0x80) == 0) return value;
    }
    return std::nullopt;
  }
  std::optional<std::string_view> text() noexcept {
    auto const size = number();
    if (!size || *size > left_.size()) return std::nullopt;
    auto const value = left_.substr(0, *size);
    left_.remove_prefix(*size);
    return value;
  }
  /// Joins numbers like "1, 2, 3", with a given separator.
  std::optional<std::string> list(char const* separator) {
    auto const count = number();
    if (!count || *count > left_.size()) return std::nullopt;  // a number takes a byte at least
    std::string words;
    for (std::uint64_t i = 0; i < *count; ++i) {
      auto const value = number();
      if (!value) return std::nullopt;
      words += (i == 0 ? "" : separator) + std::to_string(static_cast<std::int64_t>(*value));
    }
    return words;
  }

 private:
  std::string_view left_;
};

std::optional<std::string> with(char const* before, std::optional<std::string> const& words, char const* after = "") {
  if (!words) return std::nullopt;
  return before + *words + after;
}

std::optional<std::string> with(char const* before, std::optional<std::uint64_t> const& number,
                                char const* after = "") {
  if (!number) return std::nullopt;
  return before + std::to_string(*number) + after;
}

std::string printable(std::string_view text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

}  // namespace

CallArguments& CallArguments::truncate() noexcept {
  if (size_ < max_bytes) byte(static_cast<std::uint8_t>(Kind::truncate));
  return *this;
}

CallArguments& CallArguments::put(Kind kind, std::string_view value) noexcept {
  if (!has_space(1 + longest_number + value.size())) return truncate();
  byte(static_cast<std::uint8_t>(kind));
  number(value.size());
  std::memcpy(bytes_.data() + size_, value.data(), value.size());
  size_ += value.size();
  return *this;
}

CallArguments& CallArguments::parts(std::span<std::int64_t const> value) noexcept {
  return value.size() > few_parts ? put(Kind::many_parts, value.size()) : put_list(Kind::parts, value);
}

std::string describe_call(std::string_view operation, std::string_view arguments) {
  using Kind = CallArguments::Kind;
  std::string called(operation);
  std::string words;
  ArgumentsReader reader(arguments);
  while (auto const kind = reader.byte()) {
    std::optional<std::string> next;
    switch (static_cast<Kind>(*kind)) {
      case Kind::name:
        if (auto const name = reader.text()) called = printable(*name);
        continue;
      case Kind::text:
        if (auto const text = reader.text()) next = printable(*text);
        break;
      case Kind::dtype:
        if (auto const dtype = reader.number())
          next = *dtype < dtype_count ? std::string(crossrank::name_of(static_cast<Dtype>(*dtype))) : "no dtype";
        break;
      case Kind::op:
        if (auto const op = reader.number()) next = name_of(static_cast<ReduceOp>(std::min<std::uint64_t>(*op, 0xff)));
        break;
      case Kind::root: next = with("root ", reader.number()); break;
      case Kind::tag:
        if (auto const tag = reader.number()) {
          auto const* const content = reserved_tags::content_of(static_cast<std::uint32_t>(*tag));
          next = content != nullptr ? std::string("for ") + content : "with tag " + std::to_string(*tag);
        }
        break;
      case Kind::shape: next = with("[", reader.list(", "), "]"); break;
      case Kind::rows_of: next = with("rows of [", reader.list(", "), "]"); break;
      case Kind::parts: next = with("parts ", reader.list("+")); break;
      case Kind::many_parts: next = with("", reader.number(), " parts"); break;
      case Kind::ranks: next = with("[", reader.list(", "), "]"); break;
      case Kind::truncate: next = "..."; break;
    }
    if (!next) return called + words + " ...";  // damaged, or truncate short
    words += " " + *next;
  }
  return called + words;
}

}  // namespace crossrank
