#pragma once
#include "lib/core/error_record.hpp"
#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// Encodes an error into a member's record in shared memory; truncates texts that do not fit.
void fill_failure_record(FailureRecord& record, ErrorFields const& error) noexcept;

/// Decodes the error that a member recorded. Does not trust the lengths, which a peer wrote.
[[nodiscard]] ErrorRecord read_failure_record(FailureRecord const& record);

}  // namespace crossrank::node
