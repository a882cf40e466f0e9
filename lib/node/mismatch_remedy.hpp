#pragma once
#include <string>
#include <string_view>

namespace crossrank::node {

/// What can be done about ranks of which `finding` says what each calls. Where it has but a digest of the arguments, the
/// level that has them in words is named.
[[nodiscard]] inline std::string mismatch_remedy(std::string_view finding) {
  std::string remedy = "make every rank of the group call the same thing in the same order";
  if (finding.find("with arguments #") != std::string_view::npos)
    remedy += "; CROSSRANK_CHECK=collective says the arguments in words";
  return remedy;
}

}  // namespace crossrank::node
