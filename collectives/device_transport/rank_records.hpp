#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "lib/core/at_rank.hpp"
#include "lib/core/error_record.hpp"

/// Records of fixed size that each rank of a group gives to all others, on the CPU.
namespace crossrank::device {

/// A text in a record. A longer text is truncated.
using RecordText = std::array<char, 160>;

[[nodiscard]] inline RecordText record_text(std::string_view from) {
  RecordText text{};
  from.copy(text.data(), text.size() - 1);
  return text;
}
/// Returns the text up to its NUL. A peer wrote it, so it may have none.
[[nodiscard]] inline std::string string_of(std::span<char const> text) {
  return {text.data(), ::strnlen(text.data(), text.size())};
}

/// A failure in a record, as `encode_error` writes it. Longer texts are truncated.
struct RecordError {
  std::uint32_t bytes = 0;  ///< that are used; 0: no failure
  std::array<std::byte, 508> encoded{};
};

[[nodiscard]] inline RecordError record_error(std::exception_ptr const& error) {
  auto const described = describe_exception(error);
  RecordError record;
  record.bytes = static_cast<std::uint32_t>(encode_error(fields_of(described.code, described.info), record.encoded));
  return record;
}
/// Returns the failure on the rank that wrote the record, which may have damaged it.
[[nodiscard]] inline ErrorRecord error_of(RecordError const& record) {
  return decode_error(std::span(record.encoded).first(std::min<std::size_t>(record.bytes, record.encoded.size())));
}

/// Exchanges a record, and returns those of all ranks. Collective over `transport`, which has no other collective under
/// way. `mark` tells different exchanges apart.
template <class Record>
[[nodiscard]] std::vector<Record> gather_records(spi::Transport& transport, std::uint64_t mark, Record const& mine,
                                                 spi::TimeoutPolicy const& timeout_policy) {
  auto all = per_rank<Record>(transport.world_size());
  std::vector<std::size_t> const counts(all.size(), sizeof mine);
  transport.wait(transport.post_all_gatherv({spi::OpKind::check, mark}, {.bytes = std::as_bytes(std::span(&mine, 1))},
                                            counts, {.bytes = std::as_writable_bytes(std::span(all))}),
                 timeout_policy);
  return all;
}

}  // namespace crossrank::device
