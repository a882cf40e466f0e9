#include "lib/node/liveness/failure_record.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

namespace crossrank::node {

void fill_failure_record(FailureRecord& record, ErrorFields const& error) noexcept {
  record.bytes = static_cast<std::uint32_t>(encode_error(error, record.encoded));
}

ErrorRecord read_failure_record(FailureRecord const& record) {
  auto const bytes = std::min<std::size_t>(record.bytes, sizeof record.encoded);
  return decode_error(std::span(record.encoded).first(bytes));
}

}  // namespace crossrank::node
