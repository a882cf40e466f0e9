#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// Fills a rank's account of a failure; text that does not fit is cut.
void fill_failure_record(FailureRecord& detail, std::vector<int> const& blamed, std::string_view type,
                         std::string_view text) noexcept;

/// What a rank said. A peer wrote the lengths: they are not believed beyond the fields.
[[nodiscard]] std::string text_of(FailureRecord const& detail);
[[nodiscard]] std::string type_of(FailureRecord const& detail);
[[nodiscard]] std::vector<int> blamed_in(FailureRecord const& detail);

}  // namespace crossrank::node
