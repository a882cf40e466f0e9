#include "lib/codec/safetensors/state_file_name.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>

#include "lib/core/as_size.hpp"

namespace crossrank::codec {
namespace {

constexpr std::string_view rank_prefix = "rank_";
constexpr std::string_view state_infix = "_state.";
constexpr std::string_view gather_infix = "_gather.";
constexpr std::string_view suffix = ".safetensors";

std::string hexadecimal(std::uint64_t value, std::size_t digits) {
  std::string text(digits, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, value >>= 4U)
    *digit = "0123456789abcdef"[value & 15U];
  return text;
}

/// Reads a number at the start of `text` and removes it. Returns false when there is none or it is not in canonical
/// form; `text` may be changed then.
template <class Number>
bool take_number(std::string_view& text, Number& value, int base, std::size_t digits) {
  auto const available = digits == 0 ? text.size() : std::min(digits, text.size());
  if (text.empty() || text.front() == '-' || text.front() == '+') return false;
  auto const result = std::from_chars(text.data(), text.data() + available, value, base);
  auto const taken = as_size(result.ptr - text.data());
  if (result.ec != std::errc() || (digits != 0 && taken != digits)) return false;
  if (digits == 0 && taken > 1 && text.front() == '0') return false;
  auto const digits_text = text.substr(0, taken);
  if (std::any_of(digits_text.begin(), digits_text.end(), [](char c) { return c >= 'A' && c <= 'F'; })) return false;
  text.remove_prefix(taken);
  return true;
}

bool take_text(std::string_view& text, std::string_view wanted) {
  if (!text.starts_with(wanted)) return false;
  text.remove_prefix(wanted.size());
  return true;
}

}  // namespace

std::string StateFileName::name() const {
  return std::string(rank_prefix) + std::to_string(rank) + std::string(of_gather ? gather_infix : state_infix) +
         hexadecimal(writer, 16) + '-' + hexadecimal(counter, 8) + std::string(suffix);
}

std::optional<StateFileName> parse_state_file_name(std::string_view name) noexcept {
  StateFileName file;
  auto const take_infix = [&] {
    file.of_gather = take_text(name, gather_infix);
    return file.of_gather || take_text(name, state_infix);
  };
  bool const ok = take_text(name, rank_prefix) && take_number(name, file.rank, 10, 0) && take_infix() &&
                  take_number(name, file.writer, 16, 16) && take_text(name, "-") &&
                  take_number(name, file.counter, 16, 8) && name == suffix;
  return ok ? std::optional(file) : std::nullopt;
}

std::optional<StateFileName> state_file_name_at(std::string_view path) noexcept {
  auto const slash = path.rfind('/');
  return parse_state_file_name(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

}  // namespace crossrank::codec
