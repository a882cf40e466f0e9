#include "lib/core/error_record.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>

#include <cxxabi.h>

#include <crossrank/spi/foreign_exception.hpp>

namespace crossrank {

spi::ForeignException::~ForeignException() = default;

namespace {

constexpr std::size_t longest_text = std::size_t{16} << 10;
constexpr std::size_t max_ranks = std::size_t{1} << 16;
constexpr std::uint8_t detail_id = 0xff;

/// A text field, and the share of a bounded space that it may take.
struct TextField {
  std::string_view ErrorFields::*from;
  std::string ErrorInfo::*to;
  std::size_t percent;
};
/// Text fields in the order of the encoding; the index is the field's id. The message is last and uses the rest of the
/// space.
constexpr std::array<TextField, 9> text_fields{{{&ErrorFields::operation, &ErrorInfo::operation, 4},
                                                {&ErrorFields::remote_type, &ErrorInfo::remote_type, 14},
                                                {&ErrorFields::expected, &ErrorInfo::expected, 8},
                                                {&ErrorFields::got, &ErrorInfo::got, 8},
                                                {&ErrorFields::resource, &ErrorInfo::resource, 10},
                                                {&ErrorFields::system, &ErrorInfo::system, 7},
                                                {&ErrorFields::section, &ErrorInfo::section, 2},
                                                {&ErrorFields::hint, &ErrorInfo::hint, 16},
                                                {&ErrorFields::message, &ErrorInfo::message, 100}}};
constexpr std::size_t ranks_percent = 16;

struct Header {
  std::uint8_t code = 0;
  std::uint8_t unused = 0;
  std::uint16_t rank_bytes = 0;  ///< bytes of the failed ranks, which follow
  std::int32_t system_errno = 0;
};
static_assert(sizeof(Header) == 8);

struct FieldHeader {
  std::uint8_t id = 0;
  std::uint8_t unused = 0;
  std::uint16_t bytes = 0;
};
static_assert(sizeof(FieldHeader) == 4);

/// Appends to a space of limited size.
class Writer {
 public:
  explicit Writer(std::span<std::byte> space) noexcept : space_(space) {}
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  [[nodiscard]] std::size_t left() const noexcept { return space_.size() - used_; }
  void bytes(void const* from, std::size_t count) noexcept {
    if (count != 0) std::memcpy(space_.data() + used_, from, count);
    used_ += count;
  }
  void text(std::uint8_t id, std::string_view value, std::size_t limit) noexcept {
    if (value.empty() || left() <= sizeof(FieldHeader)) return;
    auto const count = std::min({value.size(), limit, left() - sizeof(FieldHeader), longest_text});
    FieldHeader const head{.id = id, .bytes = static_cast<std::uint16_t>(count)};
    bytes(&head, sizeof head);
    bytes(value.data(), count);
  }
  /// Writes seven bits in each byte, the lowest first. Returns false when there is not enough space.
  [[nodiscard]] bool number(std::uint32_t value, std::size_t end) noexcept {
    std::array<std::uint8_t, 5> digits{};
    std::size_t count = 0;
    for (; value >= 0x80; value >>= 7) digits[count++] = static_cast<std::uint8_t>(value | 0x80);
    digits[count++] = static_cast<std::uint8_t>(value);
    if (used_ + count > end) return false;
    bytes(digits.data(), count);
    return true;
  }
  void back_to(std::size_t used) noexcept { used_ = used; }

 private:
  std::span<std::byte> space_;
  std::size_t used_ = 0;
};

/// Writes runs of consecutive ranks, each as its distance from the previous run and its length. Omits runs that do not
/// fit.
void put_ranks(Writer& out, std::span<int const> ranks, std::size_t limit) noexcept {
  auto const end = out.used() + limit;
  int next = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    auto const first = ranks[i];
    std::size_t length = 1;
    while (i + length < ranks.size() && ranks[i + length] == first + static_cast<int>(length)) ++length;
    i += length;
    if (first < next) continue;  // negative, or out of order
    auto const before = out.used();
    if (!out.number(static_cast<std::uint32_t>(first - next), end) ||
        !out.number(static_cast<std::uint32_t>(length - 1), end)) {
      out.back_to(before);
      return;
    }
    next = first + static_cast<int>(length);
  }
}

std::size_t bytes_needed(ErrorFields const& error) noexcept {
  constexpr std::size_t longest_run = 10;  // two numbers
  std::size_t bytes = sizeof(Header) + longest_run * error.failed_ranks.size();
  auto const add = [&](std::string_view text) {
    if (!text.empty()) bytes += sizeof(FieldHeader) + std::min(text.size(), longest_text);
  };
  for (auto const& field : text_fields) add(error.*field.from);
  for (auto const& detail : error.details) add(detail);
  return bytes;
}

std::optional<std::uint32_t> take_number(std::span<std::byte const>& bytes) noexcept {
  std::uint32_t value = 0;
  for (unsigned shift = 0; shift < 28 && !bytes.empty(); shift += 7) {
    auto const digit = std::to_integer<std::uint32_t>(bytes.front());
    bytes = bytes.subspan(1);
    value |= (digit & 0x7f) << shift;
    if ((digit & 0x80) == 0) return value;
  }
  return std::nullopt;
}

std::vector<int> take_ranks(std::span<std::byte const> bytes) {
  std::vector<int> ranks;
  for (std::uint64_t next = 0; !bytes.empty();) {
    auto const distance = take_number(bytes);
    auto const more = take_number(bytes);
    if (!distance || !more || next + *distance + *more >= max_ranks) break;
    next += *distance;
    for (auto const end = next + *more; next <= end; ++next) ranks.push_back(static_cast<int>(next));
  }
  return ranks;
}

std::string spelled(std::type_info const& type) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> const name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? name.get() : type.name();
}

}  // namespace

std::string ErrorRecord::text() const { return Error(code, info).what(); }

ErrorFields fields_of(ErrorCode code, ErrorInfo const& info) noexcept {
  return {.code = code,
          .system_errno = info.system_errno,
          .failed_ranks = info.failed_ranks,
          .operation = info.operation,
          .remote_type = info.remote_type,
          .expected = info.expected,
          .got = info.got,
          .resource = info.resource,
          .system = info.system,
          .section = info.section,
          .hint = info.hint,
          .message = info.message,
          .details = info.details};
}

std::size_t encode_error(ErrorFields const& error, std::span<std::byte> space) noexcept {
  Writer out(space);
  Header head{.code = static_cast<std::uint8_t>(error.code), .system_errno = error.system_errno};
  out.bytes(&head, sizeof head);
  bool const fits = bytes_needed(error) <= space.size();
  auto const share = [&](std::size_t percent) { return fits ? space.size() : space.size() * percent / 100; };
  put_ranks(out, error.failed_ranks, std::min<std::size_t>(share(ranks_percent), 0xffff));
  head.rank_bytes = static_cast<std::uint16_t>(out.used() - sizeof head);
  std::memcpy(space.data(), &head, sizeof head);
  for (std::size_t id = 0; id < text_fields.size(); ++id) {
    auto const& field = text_fields[id];
    out.text(static_cast<std::uint8_t>(id), error.*field.from, share(field.percent));
  }
  for (auto const& detail : error.details) out.text(detail_id, detail, longest_text);
  return out.used();
}

std::vector<std::byte> encode_error(ErrorFields const& error) {
  std::vector<std::byte> space(bytes_needed(error));
  space.resize(encode_error(error, space));
  return space;
}

std::vector<std::byte> encode_exception(std::exception_ptr const& error) {
  auto const record = describe_exception(error);
  return encode_error(fields_of(record.code, record.info));
}

ErrorRecord decode_error(std::span<std::byte const> bytes) {
  ErrorRecord record;
  Header head;
  if (bytes.size() < sizeof head) return record;
  std::memcpy(&head, bytes.data(), sizeof head);
  bytes = bytes.subspan(sizeof head);
  if (head.code <= static_cast<std::uint8_t>(ErrorCode::unavailable)) record.code = static_cast<ErrorCode>(head.code);
  record.info.system_errno = head.system_errno;
  auto const rank_bytes = std::min<std::size_t>(head.rank_bytes, bytes.size());
  record.info.failed_ranks = take_ranks(bytes.first(rank_bytes));
  bytes = bytes.subspan(rank_bytes);
  while (bytes.size() >= sizeof(FieldHeader)) {
    FieldHeader field;
    std::memcpy(&field, bytes.data(), sizeof field);
    bytes = bytes.subspan(sizeof field);
    if (field.bytes > bytes.size()) break;
    std::string text(reinterpret_cast<char const*>(bytes.data()), field.bytes);
    bytes = bytes.subspan(field.bytes);
    if (field.id == detail_id) {
      record.info.details.push_back(std::move(text));
    } else if (field.id < text_fields.size()) {
      record.info.*text_fields[field.id].to = std::move(text);
    }
  }
  return record;
}

RemoteError remote_error(ErrorInfo info, std::vector<RankError> const& errors) {
  if (errors.empty()) {
    info.message = "a rank could not do its part and left no error that says why";
    return RemoteError(std::move(info));
  }
  auto const& first = errors.front();
  info.message = "rank " + std::to_string(first.rank) + " could not do its part: " + first.error.text();
  info.remote_type = first.error.info.remote_type;
  for (auto const& [rank, error] : errors) {
    info.failed_ranks.push_back(rank);
    info.details.push_back("rank " + std::to_string(rank) + ": " + error.info.remote_type + ": " + error.text());
  }
  return RemoteError(std::move(info));
}

ErrorRecord describe_exception(std::exception_ptr const& error) {
  ErrorRecord record{.code = ErrorCode::remote};
  try {
    std::rethrow_exception(error);
  } catch (Error const& e) {
    record = {e.code(), e.info()};
    record.info.rank = -1;  // the reader sets the rank
    record.info.remote_type = spelled(typeid(e));
  } catch (std::exception const& e) {
    auto const* const foreign = dynamic_cast<spi::ForeignException const*>(&e);
    record.info.message = foreign != nullptr ? foreign->message() : e.what();
    record.info.remote_type = foreign != nullptr ? foreign->type_name() : spelled(typeid(e));
  } catch (...) {
    auto const* const type = abi::__cxa_current_exception_type();
    record.info.message = "the exception is not a std::exception";
    record.info.remote_type = type == nullptr ? "unknown" : spelled(*type);
  }
  return record;
}

}  // namespace crossrank
