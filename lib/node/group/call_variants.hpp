#pragma once
#include <string>
#include <utility>
#include <vector>

#include "lib/core/text/rank_list.hpp"

namespace crossrank::node {

/// A set of ranks that make the same call, and the call in words.
struct CallVariant {
  std::vector<int> ranks{};
  std::string call{};
};

/// Returns "rank 1 calls broadcast root 1 F32 [4], but ranks 0, 2-7 call broadcast root 0 F32 [4]". Sides whose words
/// are the same differ in what is not in the words.
[[nodiscard]] inline std::string describe_call_variants(std::vector<CallVariant> const& sides) {
  std::string text;
  std::string const* before = nullptr;
  for (auto const& [ranks, call] : sides) {
    text += (text.empty() ? "" : ", but ") + name_ranks(ranks) + (ranks.size() == 1 ? " calls " : " call ") + call;
    if (before != nullptr && *before == call) text += " with other arguments";
    before = &call;
  }
  return text;
}

}  // namespace crossrank::node
