#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/node/layout.hpp"

namespace crossrank::node {

/// Fills a rank's account of a failure; text that does not fit is cut.
void fill_detail(Detail& detail, std::vector<int> const& blamed, std::string_view type, std::string_view text) noexcept;

/// What a rank said. A peer wrote the lengths: they are not believed beyond the fields.
[[nodiscard]] std::string text_of(Detail const& detail);
[[nodiscard]] std::string type_of(Detail const& detail);
[[nodiscard]] std::vector<int> blamed_in(Detail const& detail);

}  // namespace crossrank::node
